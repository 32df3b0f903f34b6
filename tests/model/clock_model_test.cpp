// Many random programs of the clocks, see clock_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/clock_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 5;
class clock_model : public ::testing::TestWithParam<std::uint64_t> {};

// Known order must also be reported.
TEST_P(clock_model, order_and_completion_agree_with_the_model) {
  tests::seeds const wanted("clock_model", 40'000, GetParam(), parts);
  std::uint64_t answers = 0, yes = 0;
  for (auto const seed : wanted) {
    tests::clock_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    answers += p.answers, yes += p.yes;
  }
  std::cout << wanted.count() << " programs from seed " << wanted.first() << ", " << answers << " answers checked, "
            << yes << " of them yes\n";
  if (wanted.count() > 100) {
    EXPECT_GT(yes, answers / 10);
    EXPECT_LT(yes, answers * 9 / 10);
  }
}
INSTANTIATE_TEST_SUITE_P(seeds, clock_model, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
