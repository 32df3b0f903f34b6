// What a scheduler of host threads does with a run that cannot go on: the report, and how its threads unwind.
// Threads: those of the scheduler. WEIR_TEST_SEED replays one.
#include <gtest/gtest.h>

#include "tests/base/scheduled_rig.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using base::thread_scheduler;
using tests::many;
using tests::orders;
using rig = tests::scheduled_rig;

// A thread that does not join is reported on stderr alone.
TEST(hosts, an_endless_wait_is_reported_to_its_thread) {
  base::mutex m;
  base::condition never;
  bool went_on = false;
  auto const waits = [&] {
    base::unique_lock lock(m);
    never.wait(lock);
    went_on = true;
  };
  testing::internal::CaptureStderr();
  rig joins(1);
  joins.run({waits});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(joins.why_over, "thread 0 (main) waits for the end of thread 1 (a); thread 1 (a) waits for condition 1");
  joins.threads.leave();
  testing::internal::CaptureStderr();
  rig ends(1);
  ends.threads.spawn("a", waits);
  base::yield_thread();
  ends.threads.end();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("the machine ends before its threads"), std::string::npos);
  EXPECT_FALSE(went_on);
}

TEST(hosts, a_circle_of_locks_is_named_and_unwound) {
  auto const wanted = orders(200);
  std::uint64_t stuck = 0;
  for (auto const seed : wanted) {
    rig r(seed);
    base::mutex m, n;
    int ended = 0;
    struct at_end {
      int& count;
      ~at_end() { ++count; }
    };
    r.run({[&] {
             at_end const e{ended};
             base::lock_guard one(m);
             base::lock_guard two(n);
           },
           [&] {
             at_end const e{ended};
             base::lock_guard one(n);
             base::lock_guard two(m);
           }});
    ASSERT_EQ(ended, 2);
    if (r.why_over.empty())
      continue;
    ++stuck;
    ASSERT_EQ(r.findings().size(), 1u);
    std::string const text = r.findings()[0];
    EXPECT_EQ(text, "stuck: " + r.why_over);
    EXPECT_NE(text.find("thread 1 (a) waits for lock 1, which thread 2 (b) holds; thread 2 (b) waits for lock 2, which "
                        "thread 1 (a) holds"),
              std::string::npos)
        << text;
  }
  if (many(wanted)) {
    EXPECT_GT(stuck, wanted.count() / 50);
  }
}

// A value of a thread whose end takes a lock, as the end of a thread's caches does.
base::mutex taken_at_the_end, taken_behind_it;
struct ends_with_locks {
  ~ends_with_locks() {
    base::lock_guard one(taken_at_the_end);
    base::lock_guard two(taken_behind_it);
  }
};
base::per_thread<ends_with_locks>& ending() {
  static base::per_thread<ends_with_locks> slot;
  return slot;
}

TEST(hosts, a_run_past_its_points_ends_despite_a_held_lock) {
  rig r(1);
  r.run({[] { (void)ending().get(); },
         [&] {
           base::lock_guard hold(taken_at_the_end);
           while (!r.threads.over())
             base::switch_point();
           base::yield_thread();  // the other one goes on, and the lock is not there yet
         }});
  EXPECT_EQ(r.why_over.rfind("the run does not end", 0), 0u) << r.why_over;
}

TEST(hosts, a_cycle_with_an_ending_thread_is_unwound) {
  auto const wanted = orders(200);
  std::uint64_t stuck = 0;
  for (auto const seed : wanted) {
    rig r(seed);
    bool unwound = true;
    r.run({[] { (void)ending().get(); },
           [&] {
             base::lock_guard two(taken_behind_it);
             base::lock_guard one(taken_at_the_end);
             unwound = false;
           }});
    ASSERT_EQ(unwound, !r.why_over.empty()) << "seed " << seed << ": " << r.why_over;
    stuck += unwound;
  }
  if (many(wanted)) {
    EXPECT_GT(stuck, wanted.count() / 50);
  }
}

TEST(hosts, an_endless_lock_loop_is_unwound) {
  rig r(1);
  base::mutex m;
  bool never = false;
  r.run({[&] {
    for (bool seen = false; !seen;) {
      base::lock_guard hold(m);
      seen = never;
    }
  }});
  EXPECT_EQ(r.why_over.rfind("the run does not end", 0), 0u) << r.why_over;
}

}  // namespace
}  // namespace weir
