// The clocks' invariants, each checked inside the driver call where
// a defect would show, and the state after refused calls.
#include <gtest/gtest.h>

#include <thread>

#include "tests/clock/rig.h"

namespace weir::clock {
namespace {

using driver::code;

struct timelines : testing::Test, rig {
  void TearDown() override { EXPECT_EQ(all.validate(), std::vector<std::string>{}); }
  std::ptrdiff_t events() const {  // live in the driver
    auto const alive = control->census();
    return std::count_if(alive.begin(), alive.end(), [](std::string const& what) { return what.find("event") == 0; });
  }
};

TEST_F(timelines, a_record_increments_next_before_the_driver_call) {
  auto& a = stream();
  stamp const before = a.now();
  stamp inside;
  machine->in_record = [&] { inside = a.now(); };
  auto const f = a.fence();
  EXPECT_EQ(f.value, before);
  EXPECT_GT(inside.n, f.value.n);  // else another thread's work from now on would count as covered
  drain(a);
  EXPECT_TRUE(all.poll(before).value);
  EXPECT_FALSE(all.complete(inside));
}

TEST_F(timelines, a_waiter_merges_after_the_drivers_wait_returned) {
  auto& a = stream();
  auto& b = stream();
  stamp const s = a.now();
  bool inside = true;
  machine->in_wait = [&] { inside = b.covers(s); };
  machine->fail_call("wait", 1, code::failed);
  EXPECT_EQ(b.wait(s).what, code::failed);
  EXPECT_FALSE(inside);
  EXPECT_FALSE(b.covers(s));
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_TRUE(b.covers(s));
}

TEST_F(timelines, a_fence_carries_the_frontier_before_its_record) {
  auto &a = stream(), &b = stream(), &c = stream();
  stamp const s = a.now();
  // another thread's wait between the record and its return
  machine->after_record = [&] { EXPECT_TRUE(b.wait(s).ok()); };
  stamp const f = b.fence().value;
  EXPECT_TRUE(c.wait(f).ok());
  EXPECT_FALSE(c.covers(s));
  EXPECT_TRUE(b.covers(s));
  EXPECT_TRUE(c.wait(b.now()).ok());
  EXPECT_TRUE(c.covers(s));
}

TEST_F(timelines, a_wait_merges_the_fences_frontier_not_the_newest) {
  auto &a = stream(), &b = stream(), &c = stream();
  stamp const early = b.fence().value;
  stamp const s = a.now();
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_TRUE(c.wait(early).ok());
  EXPECT_FALSE(c.covers(s));
}

TEST_F(timelines, done_only_grows_and_names_fences_that_were_begun) {
  auto& a = stream();
  work(a);
  EXPECT_TRUE(a.synchronize().ok());
  stamp const now = a.now();
  EXPECT_FALSE(all.complete(now));  // another thread may still enqueue work under this stamp
  EXPECT_FALSE(a.query().value && all.complete(a.now()));
  EXPECT_TRUE(all.complete(now));
  work(a);
  EXPECT_FALSE(a.query().value);
  EXPECT_TRUE(all.complete(now));
  EXPECT_FALSE(all.complete(a.now()));
}

TEST_F(timelines, a_complete_fence_completes_all_before_it) {
  auto &a = stream(0), &b = stream(1), &c = stream(0);
  work(a);
  stamp const s = a.now();
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_TRUE(c.wait(b.now()).ok());
  EXPECT_FALSE(all.complete(s));
  EXPECT_TRUE(all.synchronize(c.now()).ok());
  EXPECT_TRUE(all.complete(s));
  EXPECT_TRUE(stream(1).covers(s));
}

TEST_F(timelines, order_is_transitive_and_free_once_known) {
  auto &a = stream(0), &b = stream(1), &c = stream(0);
  stamp const s = a.now();
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_TRUE(c.wait(b.now()).ok());
  EXPECT_TRUE(c.covers(s));
  auto const calls = machine->calls_so_far();
  EXPECT_TRUE(c.wait(s).ok());
  EXPECT_TRUE(a.wait(a.now()).ok());
  EXPECT_EQ(machine->calls_so_far(), calls);
  EXPECT_FALSE(a.covers(b.now()));
}

TEST_F(timelines, a_refused_record_is_covered_by_the_next_fence) {
  auto& a = stream();
  work(a);
  stamp const s = a.now();
  machine->fail_call("record", 1, code::failed);
  EXPECT_EQ(a.fence().is.what, code::failed);
  drain(a);
  EXPECT_FALSE(all.complete(s));
  machine->fail_call("create_event", 1, code::out_of_memory);
  machine->fail_call("record", 1, code::failed);
  EXPECT_FALSE(all.poll(s).ok());
  EXPECT_FALSE(all.complete(s));
  EXPECT_FALSE(all.poll(s).value);  // records the fence that covers it
  drain(a);
  EXPECT_TRUE(all.poll(s).value);
}

TEST_F(timelines, a_wait_uses_the_oldest_fence_that_covers_the_stamp) {
  auto &a = stream(), &b = stream();
  work(a);
  stamp const s = a.now();
  (void)a.fence();
  work(a);
  (void)a.fence();
  auto const fences = all.counted().fences;
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_EQ(all.counted().fences, fences);
  step(a);
  step(a);
  EXPECT_TRUE(step(b));  // the second work has not run
  EXPECT_FALSE(b.covers(a.now()));
}

// A later fence covers the fences that were dropped.
TEST_F(timelines, the_list_of_fences_is_bounded) {
  auto &a = stream(), &b = stream();
  std::vector<stamp> stamps;
  for (int i = 0; i < 900; ++i) {
    work(a);
    stamps.push_back(a.now());
    (void)a.fence();
    ASSERT_EQ(all.validate(), std::vector<std::string>{});
  }
  auto const fences = all.counted().fences;
  for (auto const& s : stamps) {
    EXPECT_FALSE(all.poll(s).value);
    EXPECT_TRUE(b.wait(s).ok());
  }
  EXPECT_EQ(all.counted().fences, fences);
  EXPECT_LE(all.counted().waits, fence_list::most);
  drain(a);
  EXPECT_TRUE(all.poll(stamps[0]).value);
  EXPECT_TRUE(all.poll(stamps.back()).value);
}

TEST_F(timelines, one_poll_halves_to_the_newest_complete_fence) {
  auto& a = stream();
  std::vector<stamp> stamps;
  for (int i = 0; i < 60; ++i) {
    stamps.push_back(a.now());
    (void)a.fence();
  }
  for (int i = 0; i < 41; ++i)
    step(a);
  EXPECT_TRUE(all.poll(stamps[0]).value);
  EXPECT_LE(all.counted().polls, 8u);
  EXPECT_TRUE(all.complete(stamps[40]));
  EXPECT_FALSE(all.complete(stamps[41]));
}

TEST_F(timelines, driver_events_are_used_again) {
  auto& a = stream();
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(all.take_event(0, driver::event_kind::order_only).ok());
    (void)a.fence();
    EXPECT_TRUE(all.synchronize(a.now()).ok());
  }
  EXPECT_GE(events(), 1);
  EXPECT_LE(events(), 4);
}

// Taking the next event destroys the exported one.
TEST_F(timelines, an_exported_event_is_not_reused) {
  for (int i = 0; i < 10; ++i)
    all.take_event(0, driver::event_kind::order_only).value->give_away();
  EXPECT_EQ(events(), 1);
  EXPECT_TRUE(stream().fence().ok());
  EXPECT_EQ(events(), 1);  // the stream's own
}

TEST_F(timelines, an_answer_of_an_event_recorded_again_is_ignored) {
  auto &a = stream(), &idle = stream();
  work(a);
  auto const event = all.take_event(0, driver::event_kind::order_only).value;
  stamp const s = a.now();
  auto const first = a.record(event).value;
  machine->in_query = [&] {  // another thread records the event on an idle stream just before the query
    EXPECT_TRUE(idle.record(event, first).ok());
    drain(idle);
  };
  EXPECT_FALSE(all.poll(s).value);
  EXPECT_FALSE(all.complete(s));
}

TEST_F(timelines, a_wait_for_an_event_recorded_again_is_repeated) {
  auto &a = stream(), &b = stream(), &idle = stream();
  work(a);
  auto const event = all.take_event(0, driver::event_kind::order_only).value;
  stamp const s = a.now();
  auto const first = a.record(event).value;
  machine->in_wait = [&] { EXPECT_TRUE(idle.record(event, first).ok()); };
  EXPECT_TRUE(b.wait(s).ok());
  EXPECT_TRUE(b.covers(s));
  work(b);
  drain(idle);
  drain(b);
  EXPECT_FALSE(b.query().value);  // it waits for `a`
  drain(a);
  drain(b);
  EXPECT_TRUE(b.query().value);
}

TEST_F(timelines, nothing_follows_from_an_exported_events_answer) {
  auto &a = stream(), &b = stream();
  auto const event = all.take_event(0, driver::event_kind::order_only).value;
  event->give_away();
  stamp const s = a.now();
  auto const f = a.record(event).value;
  EXPECT_TRUE(b.wait(f, a).ok());
  EXPECT_FALSE(b.covers(s));
  all.note_complete(a, f);
  EXPECT_FALSE(all.complete(s));
}

TEST_F(timelines, a_retired_stream_still_answers_without_calls) {
  auto &a = stream(0, life::foreign), &b = stream();
  work(a);
  stamp const s = a.now();
  all.retire(a);
  all.retire(a);
  EXPECT_EQ(a.alive(), life::retired);
  EXPECT_TRUE(machine->destroy_stream(a.device(), a.handle()).ok());
  EXPECT_FALSE(all.poll(s).value);
  EXPECT_EQ(a.fence().is.what, code::invalid);
  EXPECT_EQ(a.wait(b.now()).what, code::invalid);
  EXPECT_TRUE(b.wait(a.now()).ok());
  EXPECT_TRUE(b.covers(s));
  EXPECT_TRUE(all.synchronize(a.now()).ok());
  EXPECT_TRUE(all.complete(s));
  EXPECT_TRUE(all.complete(a.now()));
}

TEST_F(timelines, a_stream_retired_without_a_fence_is_waited_for) {
  auto& a = stream(0, life::foreign);
  work(a);
  stamp const s = a.now();
  machine->fail_call("record", 1, code::failed);
  all.retire(a);
  EXPECT_TRUE(all.complete(s));
  auto& b = stream(0, life::foreign);
  work(b);
  stamp const never = b.now();
  machine->fail_call("record", 1, code::failed);
  machine->fail_call("synchronize_stream", 1, code::failed);
  all.retire(b);
  EXPECT_FALSE(all.poll(never).value);
  EXPECT_TRUE(all.synchronize(never).ok());  // a device synchronization answers
  EXPECT_TRUE(all.complete(never));
}

TEST_F(timelines, work_of_a_lost_device_never_completes_nor_blocks) {
  auto &a = stream(0), &b = stream(1), &c = stream(1);
  work(a);
  stamp const done = a.now();
  EXPECT_TRUE(all.synchronize(done).ok());
  work(a);
  stamp const s = a.now();
  EXPECT_TRUE(b.wait(s).ok());
  control->lose_device(0);
  EXPECT_EQ(all.poll(s).is.what, code::lost);
  EXPECT_TRUE(all.lost(0));
  EXPECT_EQ(all.synchronize(s).what, code::lost);
  EXPECT_EQ(c.wait(s).what, code::lost);
  EXPECT_EQ(all.synchronize_device(0).what, code::lost);
  EXPECT_FALSE(all.complete(s));
  EXPECT_TRUE(all.complete(done));
  EXPECT_TRUE(c.wait(done).ok());
  EXPECT_FALSE(all.lost(1));
  EXPECT_TRUE(c.fence().ok());
}

TEST_F(timelines, a_query_behind_a_lost_device_ends_with_an_error) {
  auto &a = stream(0), &b = stream(1), &c = stream(1);
  work(a);
  EXPECT_TRUE(b.wait(a.now()).ok());
  work(b);
  stamp const behind = b.now();
  EXPECT_FALSE(all.poll(behind).value);
  control->lose_device(0);
  EXPECT_TRUE(c.query().value);
  EXPECT_FALSE(all.lost(1));
  EXPECT_EQ(all.poll(behind).is.what, code::lost);
  EXPECT_TRUE(all.lost(1));
  EXPECT_FALSE(all.complete(behind));
}

TEST_F(timelines, a_timed_wait_sees_completion_or_gives_up) {
  auto& a = stream();
  work(a);
  stamp const s = a.now();
  EXPECT_EQ(all.ask_for_a_while(s).what, code::not_ready);
  EXPECT_FALSE(all.complete(s));
  int looks = 0;
  std::function<void()> const looked = [&] {
    if (++looks < 10)
      machine->in_query = looked;
    else
      drain(a);
  };
  machine->in_query = looked;
  EXPECT_TRUE(all.ask_for_a_while(s).ok());
  EXPECT_TRUE(all.complete(s));
  work(a);
  control->lose_device(0);
  auto const asked = all.counted().polls;
  EXPECT_EQ(all.ask_for_a_while(a.now()).what, code::lost);
  EXPECT_LE(all.counted().polls, asked + 1);
}

TEST_F(timelines, a_timed_wait_naps_on_a_machine_with_threads) {
  constexpr int questions = 20;
  auto& a = stream();
  work(a);
  int looks = 0;
  std::int64_t began = 0, ended = 0;
  std::function<void()> const looked = [&] {
    if (!looks++)
      began = base::now_ns();
    if (looks < questions)
      machine->in_query = looked;
    else
      ended = base::now_ns(), drain(a);
  };
  machine->in_query = looked;
  machine->moves = true;
  EXPECT_TRUE(all.ask_for_a_while(a.now()).ok());
  EXPECT_GE(ended - began, (questions - 1) * 200'000);
}

TEST_F(timelines, the_loss_is_put_to_the_right_device) {
  auto &a = stream(0), &b = stream(1);
  stamp const s = a.now();
  (void)a.fence();
  control->lose_device(1);
  EXPECT_EQ(b.wait(s).what, code::lost);
  EXPECT_TRUE(all.lost(1));
  EXPECT_FALSE(all.lost(0));
}

TEST_F(timelines, a_wait_asks_about_captures_around_the_record) {
  auto &a = stream(0), &b = stream(1);
  int const before = machine->asked_for_captures;
  EXPECT_TRUE(b.wait(a.now()).ok());
  EXPECT_EQ(machine->asked_for_captures, before + 3);
}

TEST_F(timelines, a_captured_stream_is_neither_recorded_nor_waits) {
  auto &a = stream(), &b = stream();
  (void)b.fence();
  machine->under_capture = true;
  machine->in_record = machine->in_wait = [] { ADD_FAILURE() << "called under capture"; };
  EXPECT_EQ(a.fence().is.what, code::not_permitted);
  EXPECT_EQ(a.wait(b.now()).what, code::not_permitted);
  EXPECT_EQ(all.poll(a.now()).is.what, code::not_permitted);
  machine->under_capture = false;
  machine->in_record = machine->in_wait = nullptr;
}

// A thread asks, another begins a capture and asks too, and the first one's answer comes last.
TEST_F(timelines, an_answer_from_before_a_capture_does_not_hide_it) {
  auto& a = stream();
  machine->after_asking = [&] {
    machine->under_capture = true;
    EXPECT_TRUE(a.captured().value);
  };
  EXPECT_TRUE(a.captured().value);
  EXPECT_TRUE(a.seen_captured());
  machine->after_asking = [&] {
    machine->under_capture = false;
    EXPECT_FALSE(a.captured().value);
  };
  EXPECT_FALSE(a.captured().value);
  EXPECT_FALSE(a.seen_captured());
}

TEST_F(timelines, each_is_found_by_its_id_until_its_runtime_ends) {
  std::vector<std::uint64_t> ids;
  stamp last;
  {
    rig other;
    for (int i = 0; i < 300; ++i) {
      auto& t = other.stream();
      EXPECT_EQ(find(t.id()), &t);
      ids.push_back(t.id());
      last = t.now();
    }
    EXPECT_EQ(stream().wait(last).what, code::invalid);  // belongs to another runtime
  }
  for (auto id : ids)
    EXPECT_EQ(find(id), nullptr);
  EXPECT_TRUE(all.complete(last));
  EXPECT_EQ(find(0), nullptr);
  EXPECT_EQ(find(~0ull), nullptr);
}

// Refuses every call of a small scenario once. Each gives a typed error, invariants hold, and a retry works.
TEST_F(timelines, any_call_refused_once_leaves_the_scenario_working) {
  auto scenario = [](rig& r, stream_clock& a, stream_clock& b) {
    r.work(a);
    stamp const s = a.now();
    bool ok = b.wait(s).ok();
    r.work(b);
    ok = a.wait(b.now()).ok() && ok;
    ok = r.all.synchronize(a.now()).ok() && ok;
    EXPECT_TRUE(!ok || r.all.complete(s));
    return ok && r.all.poll(b.now()).ok();
  };
  for (std::uint64_t k = 1; k < 40; ++k) {
    auto &a = stream(0), &b = stream(1);
    machine->fail_call("any", k, code::failed);
    (void)scenario(*this, a, b);
    machine->forget_orders();
    EXPECT_EQ(all.validate(), std::vector<std::string>{});
    EXPECT_TRUE(scenario(*this, a, b)) << "after call " << k << " was refused";
  }
}

// Every fence knows many streams, so that the check takes long enough to overlap another thread's record.
TEST_F(timelines, invariants_are_judged_at_one_moment) {
  auto& a = stream();
  for (int i = 0; i < 200; ++i)
    EXPECT_TRUE(a.wait(stream().now()).ok());
  std::atomic<bool> over = false;
  std::atomic<int> recorded = 0;
  std::thread recorder([&] {
    for (; !over; ++recorded)
      EXPECT_TRUE(a.fence().ok());
  });
  for (int judged = 0; judged < 150 || recorded < 50; ++judged)
    EXPECT_EQ(all.validate(), std::vector<std::string>{});
  over = true;
  recorder.join();
}

TEST(timeline_threads, records_waits_and_polls_keep_the_invariants) {
  rig r({.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::threads, .seed = 1});
  std::vector<stream_clock*> lines;
  for (int i = 0; i < 4; ++i)
    lines.push_back(&r.stream(i % 2));
  std::vector<std::thread> threads;
  for (unsigned me = 0; me < 4; ++me) {
    threads.emplace_back([&, me] {
      std::uint64_t x = me + 1;
      for (int i = 0; i < 300; ++i) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        stream_clock &a = *lines[(x >> 33) % 4], &b = *lines[(x >> 40) % 4];
        switch ((x >> 50) % 4) {
          case 0:
            r.work(a);
            EXPECT_TRUE(a.fence().ok());
            break;
          case 1: {
            stamp const s = b.now();
            EXPECT_TRUE(a.wait(s).ok());
            EXPECT_TRUE(a.covers(s));
            break;
          }
          case 2: EXPECT_TRUE(r.all.poll(a.now()).ok()); break;
          case 3: {
            stamp const s = a.now();
            EXPECT_TRUE(r.all.synchronize(s).ok());
            EXPECT_TRUE(r.all.complete(s));
            break;
          }
        }
      }
    });
  }
  for (auto& t : threads)
    t.join();
  for (auto* t : lines)
    EXPECT_TRUE(r.all.synchronize(t->now()).ok());
  EXPECT_EQ(r.all.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir::clock
