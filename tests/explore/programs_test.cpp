// Memory, captures and clocks among threads, streams and devices: what they do is right in every order that a tape can
// express.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include "tests/explore/programs.h"

namespace weir {
namespace {

class explored_in_parts : public ::testing::TestWithParam<std::uint64_t> {};  // for parallel runs
class explore_memory : public explored_in_parts {};
class explore_captures : public explored_in_parts {};
class explore_clocks : public explored_in_parts {};

TEST_P(explore_memory, every_byte_is_right_among_threads) {
  // with switch points at atomics a run takes longer and covers more
  tests::explore_program("memory_among_threads", tests::points_at_atomics ? 5000 : 14'000, GetParam(), 4);
}
TEST_P(explore_captures, every_byte_is_right_among_threads) {
  tests::explore_program("captures_among_threads", tests::points_at_atomics ? 400 : 4000, GetParam(), 2);
}
TEST_P(explore_captures, graphs_keep_their_memory_among_threads) {
  tests::explore_program("graphs_among_threads", tests::points_at_atomics ? 400 : 4000, GetParam(), 2);
}
TEST_P(explore_clocks, order_and_completion_are_true_among_threads) {
  tests::explore_program("clocks_among_threads", 22'000, GetParam(), 2);
}
INSTANTIATE_TEST_SUITE_P(seeds, explore_memory, ::testing::Range<std::uint64_t>(0, 4));
INSTANTIATE_TEST_SUITE_P(seeds, explore_captures, ::testing::Range<std::uint64_t>(0, 2));
INSTANTIATE_TEST_SUITE_P(seeds, explore_clocks, ::testing::Range<std::uint64_t>(0, 2));

}  // namespace
}  // namespace weir
