// Runs each program of real threads for a while. ThreadSanitizer reports reads of unpublished data.
// Threads: several.
#include <gtest/gtest.h>

#include "tests/stress/programs.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

class stress : public ::testing::TestWithParam<tests::program_in_threads> {};

TEST_P(stress, nothing_goes_wrong_among_real_threads) {
  for (auto const seed : tests::seeds(GetParam().name, 1))
    EXPECT_EQ(GetParam().run(seed, tests::stress_time()), "") << "seed " << seed;
}
INSTANTIATE_TEST_SUITE_P(programs, stress, ::testing::ValuesIn(tests::programs_in_threads),
                         [](auto const& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
