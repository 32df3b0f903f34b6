// Memory among threads, streams and devices: bytes survive every order that a tape can express.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include "tests/explore/programs.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 4;  // for parallel runs
class explore_memory : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(explore_memory, every_byte_is_right_among_threads) {
  // with switch points at atomics a run takes longer and covers more
  tests::explore_program("memory_among_threads", tests::points_at_atomics ? 5000 : 14'000, GetParam(), parts);
}
INSTANTIATE_TEST_SUITE_P(seeds, explore_memory, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
