// Many random programs of the clocks; clock_program.h says what they do.
// WEIR_TEST_SEED=s replays program s; WEIR_TEST_SEEDS=n runs n programs.
#include <gtest/gtest.h>

#include "tests/model/clock_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 5;
class clock_model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(clock_model, in_random_programs_all_that_is_said_to_be_ordered_or_complete_is_and_what_must_be_known_is_said) {
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0);
  std::uint64_t const count = only ? (GetParam() == 0) : tests::number_from_environment("WEIR_TEST_SEEDS", 30'000) / parts;
  std::uint64_t const first = only ? only : 1 + GetParam() * count;
  std::uint64_t answers = 0, yes = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    tests::clock_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    answers += p.answers, yes += p.yes;
  }
  std::cout << count << " programs from seed " << first << ", " << answers << " answers checked, " << yes << " of them yes\n";
  if (count > 100) {
    EXPECT_GT(yes, answers / 10);
    EXPECT_LT(yes, answers * 9 / 10);
  }
}
INSTANTIATE_TEST_SUITE_P(seeds, clock_model, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
