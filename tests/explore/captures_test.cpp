// Captures among host threads: every launch of a graph is right, and no other thread spoils a capture.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include "tests/explore/programs.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 2;  // for parallel runs
class explore_captures : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(explore_captures, every_byte_is_right_among_threads) {
  tests::explore_program("captures_among_threads", tests::points_at_atomics ? 400 : 4000, GetParam(), parts);
}
TEST_P(explore_captures, graphs_keep_their_memory_among_threads) {
  tests::explore_program("graphs_among_threads", tests::points_at_atomics ? 400 : 4000, GetParam(), parts);
}
INSTANTIATE_TEST_SUITE_P(seeds, explore_captures, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
