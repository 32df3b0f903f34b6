// One rule among threads at a time: frees, concurrent waits, notifications, history. Each test replays its
// tapes before it draws, and every committed tape belongs to an explored program.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/explore/programs.h"

namespace weir {
namespace {

TEST(explore_threads, a_freed_block_serves_others_after_its_work) {
  tests::explore_program("given_back", 500);
}
TEST(explore_threads, what_an_ended_pool_left_goes_to_one) {
  tests::explore_program("pools_end", 500);
}
TEST(explore_threads, a_call_keeps_the_heap_that_it_found) {
  tests::explore_program("pool_ends_under_guards", 500);
}
TEST(explore_threads, what_two_threads_wait_for_is_known_of_both) {
  tests::explore_program("knowledge", 500);
}
TEST(explore_threads, an_end_is_never_gathered_before_its_start) {
  tests::explore_program("history", 500);
}
TEST(explore_threads, every_wait_for_the_crew_ends) {
  tests::explore_program("crew", 500);
}

// Nor is an allocation refused while there is room.
TEST(explore_threads, pinned_memory_is_safe_under_copies) {
  tests::explore_program("pinned", 120);
}
TEST(explore_threads, memory_that_is_coming_back_is_not_refused) {
  tests::explore_program("short", 60);
}
TEST(explore_threads, a_host_far_ahead_reuses_small_blocks) {
  tests::explore_program("far_ahead", 60);
}
TEST(explore_threads, a_refusal_costs_no_memory_or_bytes) {
  tests::explore_program("refused", 400);
}
// A pool that one thread uses, another one needs, and a third wants room from.
TEST(explore_threads, pools_under_a_spill_keep_their_bytes) {
  tests::explore_program("spill", 300);
}
TEST(explore_threads, no_call_names_a_stream_that_has_gone) {
  tests::explore_program("registrations", 400);
}
TEST(explore_threads, a_withdrawn_promise_binds_no_thread) {
  tests::explore_program("promises", 400);
}
TEST(explore_threads, opened_blocks_stay_open_while_a_pool_sleeps) {
  tests::explore_program("opened", 300);
}
// Nor does a pool refuse a buffer while there is room.
TEST(explore_threads, a_pool_gives_no_range_twice) {
  tests::explore_program("pool", 60);
}

TEST(tapes, are_named_after_their_program) {
  std::size_t n = 0;
  for (auto const& entry : std::filesystem::directory_iterator(tests::tapes_folder())) {
    if (entry.path().extension() != ".tape")
      continue;
    auto const f = tests::tape_file::read(entry.path().string());
    EXPECT_NO_THROW((void)tests::explored_program(f.program)) << entry.path();
    EXPECT_EQ(entry.path().filename().string().rfind(f.program + "-", 0), 0u)
        << entry.path() << ": PROGRAM-DEFECT.tape";
    EXPECT_FALSE(f.what.empty()) << entry.path() << " does not say what failed";
    ++n;
  }
  EXPECT_GE(n, 5u);
}

}  // namespace
}  // namespace weir
