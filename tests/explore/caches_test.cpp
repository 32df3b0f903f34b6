// Thread caches under every order of threads that a tape can express. Builds with switch
// points at atomics also switch inside the lock-free paths.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/explore/programs.h"

namespace weir {
namespace {

// Only many runs show frequencies: one run may use no lock-free path. A checker's runs use none.
bool meets_the_quick_ways(std::uint64_t runs_made) {
  return runs_made >= 50 && base::has_process_wide_fence() && !std::getenv("WEIR_CHECK_RACES");
}

// Nor doubled or miscounted, while caches are closed, drained and left behind.
TEST(explore_caches, no_slot_is_lost_while_caches_are_emptied) {
  // with switch points at atomics a run takes longer and covers more
  std::uint64_t const runs = tests::points_at_atomics ? 150 : 400;
  auto const made = tests::explore_program("caches", runs);
  using tests::cache_program;
  std::printf("calls without the lock %llu, with it %llu; frees that name a stream, without it %llu\n",
              static_cast<unsigned long long>(cache_program::quick),
              static_cast<unsigned long long>(cache_program::slow),
              static_cast<unsigned long long>(cache_program::gathered));
  if (meets_the_quick_ways(made)) {
    EXPECT_GT(cache_program::quick, cache_program::slow / 4);
    EXPECT_GT(cache_program::gathered, made);
  }
}

TEST(explore_caches, slots_returned_together_wait_for_all_users) {
  auto const made = tests::explore_program("handed_over", tests::points_at_atomics ? 100 : 300);
  using program = tests::handed_over_among_threads;
  std::printf("frees without the lock %llu, with it %llu\n", static_cast<unsigned long long>(program::gathered),
              static_cast<unsigned long long>(program::alone));
  if (meets_the_quick_ways(made)) {
    EXPECT_GT(program::gathered, program::alone / 8);
  }
}

TEST(explore_caches, an_owned_lock_is_held_by_one_thread_at_a_time) {
  if (!base::has_process_wide_fence())
    GTEST_SKIP() << "no thread can be fenced here: nothing is owned";
  tests::explore_program("owned_lock", tests::points_at_atomics ? 300 : 600);
}

TEST(explore_caches, concurrent_marks_of_one_block_are_all_kept) {
  tests::explore_program("marks", tests::points_at_atomics ? 200 : 50);
}

}  // namespace
}  // namespace weir
