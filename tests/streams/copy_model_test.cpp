// Many random programs of copies; copy_program.h says what they do. WEIR_TEST_SEED replays one program.
#include "tests/model/copy_program.h"

namespace weir {
namespace {

TEST(copy_model, random_copies_leave_the_bytes_of_the_program_order) {
  for (auto seed = test::first_seed(); seed < test::end_of_seeds(2000); ++seed) {
    auto const wrong = tests::run_copies(seed);
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
