// Many random programs of copies; copy_program.h says what they do. Seeds as tests/support/seeds.h says.
// Threads: one.
#include "tests/model/copy_program.h"

namespace weir {
namespace {

TEST(copy_model, random_copies_leave_the_bytes_of_program_order) {
  for (auto const seed : tests::seeds("copy_model", 2000)) {
    auto const wrong = tests::run_copies(seed);
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
