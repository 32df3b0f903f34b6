// Many random programs of collectives by copies; see chain_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/chain_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(chain_model, random_collectives_agree_with_the_model) {
  for (auto const seed : tests::seeds("chain programs", 60)) {
    auto const wrong = tests::chain_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << "seed " << seed << ": " << wrong;
  }
}

}  // namespace
}  // namespace weir
