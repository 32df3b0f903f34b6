// Clocks among threads, checked against the ledger of driver calls.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include "tests/explore/programs.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 2;  // for parallel runs
class explore_clocks : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(explore_clocks, order_and_completion_are_true_among_threads) {
  tests::explore_program("clocks_among_threads", 32'000, GetParam(), parts);
}
INSTANTIATE_TEST_SUITE_P(seeds, explore_clocks, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
