// Many random groups of collectives; see groups_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/groups_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(groups_model, random_groups_bring_what_is_computed_here) {
  for (auto const seed : tests::seeds("group programs", 60)) {
    auto const wrong = tests::groups_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << "seed " << seed << ": " << wrong;
  }
}

}  // namespace
}  // namespace weir
