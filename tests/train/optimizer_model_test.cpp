// Many random steps of an optimizer; see optimizer_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/optimizer_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(optimizer_model, random_steps_agree_with_the_model) {
  for (auto const seed : tests::seeds("optimizer programs", 60)) {
    auto const wrong = tests::optimizer_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << "seed " << seed << ": " << wrong;
  }
}

}  // namespace
}  // namespace weir
