// Many random saves beside work; see checkpoint_program.h.
// Seeds as tests/support/seeds.h says. Threads: those of each run.
#include "tests/model/checkpoint_program.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(checkpoint_model, files_have_the_bytes_of_their_moment) {
  for (auto const seed : tests::seeds("checkpoint programs", 100)) {
    auto const wrong = tests::checkpoint_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
