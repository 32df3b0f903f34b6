// One rule among threads at a time: what is given back, what two waits say at once, who is woken, what is
// written down. And that every committed tape is one of a program that is explored:
// each test replays its own before it draws.
// Threads: those of each run, switched by its tape. See explore.h for the environment.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/explore/programs.h"

namespace weir {
namespace {

TEST(explore_threads, a_block_given_back_is_another_streams_only_when_its_work_is_done) {
  tests::explore_program("given_back", 500);
}
TEST(explore_threads, what_two_threads_make_one_stream_wait_for_is_known_of_both) {
  tests::explore_program("knowledge", 500);
}
TEST(explore_threads, an_end_is_never_gathered_before_its_beginning) { tests::explore_program("history", 500); }
TEST(explore_threads, everybody_who_waits_for_the_crew_comes_back) { tests::explore_program("crew", 500); }

TEST(explore_threads, pinned_memory_is_not_written_under_a_copy_and_not_refused_where_there_is_room) {
  tests::explore_program("pinned", 120);
}
TEST(explore_threads, nobody_goes_without_memory_that_is_on_its_way) { tests::explore_program("short", 60); }
TEST(explore_threads, a_host_far_ahead_gets_its_small_blocks_again_behind_who_reads_them) {
  tests::explore_program("far_ahead", 60);
}
TEST(explore_threads, what_is_refused_to_one_costs_nobody_memory_or_bytes) { tests::explore_program("refused", 400); }
TEST(explore_threads, a_pool_gives_no_range_twice_and_refuses_none_where_there_is_room) {
  tests::explore_program("pool", 60);
}

TEST(tapes, that_are_committed_name_a_program_and_are_named_after_it) {
  std::size_t n = 0;
  for (auto const& entry : std::filesystem::directory_iterator(tests::tapes_folder())) {
    if (entry.path().extension() != ".tape") continue;
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
