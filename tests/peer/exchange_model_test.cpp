// Many random programs of collectives with a root, sends and receives; see exchange_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/exchange_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(exchange_model, random_collectives_agree_with_the_model) {
  for (auto const seed : tests::seeds("exchange programs", 60)) {
    auto const wrong = tests::exchange_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << "seed " << seed << ": " << wrong;
  }
}

}  // namespace
}  // namespace weir
