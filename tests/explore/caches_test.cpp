// What threads keep of small blocks, under every order of threads that a tape can say; in builds that switch at atomics also in the
// midst of the ways without a lock.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include "tests/model/cache_program.h"

namespace weir {
namespace {

TEST(explore_caches, no_slot_is_lost_doubled_or_miscounted_while_caches_are_shut_emptied_and_left_behind) {
  tests::explore({.name = "caches", .runs = 400}, tests::small_blocks_among_threads);
}

}  // namespace
}  // namespace weir
