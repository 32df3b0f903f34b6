// The thread scheduler of a seeded machine chooses a runnable thread at each switch point.
// Threads: those of a relay, which are the subject. WEIR_TEST_SEED replays one.
#include "simulator/threads/thread_scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/base/scheduled_rig.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using base::thread_scheduler;
using tests::many;
using tests::orders;
using rig = tests::scheduled_rig;

TEST(hosts, the_order_follows_from_the_seed) {
  auto const wanted = orders(200);
  auto const order = [](std::uint64_t seed) {
    rig r(seed);
    std::string text;
    base::mutex m;
    auto const body = [&](char c) {
      return [&, c] {
        for (int i = 0; i < 4; ++i) {
          base::lock_guard lock(m);
          text += c;
        }
      };
    };
    r.run({body('a'), body('b'), body('c')});
    return std::pair(text, r.made.control->trace_hash());
  };
  std::set<std::string> seen;
  for (auto const seed : wanted) {
    auto const once = order(seed);
    ASSERT_EQ(once, order(seed)) << "seed " << seed;
    ASSERT_EQ(once.first.size(), 12u);
    seen.insert(once.first);
  }
  if (many(wanted)) {
    EXPECT_GT(seen.size(), wanted.count() / 10);
  }
}

TEST(hosts, a_lock_is_held_by_one_and_a_race_without_it_is_found) {
  auto const wanted = orders(200);
  std::uint64_t lost = 0;
  for (auto const seed : wanted) {
    rig r(seed);
    int locked = 0, unlocked = 0;
    base::mutex m, other;
    auto const body = [&] {
      for (int i = 0; i < 3; ++i) {
        {
          base::lock_guard lock(m);
          int const seen = locked;
          { base::lock_guard within(other); }
          locked = seen + 1;
        }
        int const seen = unlocked;
        { base::lock_guard within(other); }
        unlocked = seen + 1;
      }
    };
    r.run({body, body, body});
    ASSERT_EQ(locked, 9) << "seed " << seed;
    lost += unlocked != 9;
  }
  if (many(wanted)) {
    EXPECT_GT(lost, wanted.count() / 10);
  }
}

int initialised = 0;
template <int N>  // a static is initialised once a process: each run has its own
int a_static(base::mutex& busy, base::mutex& quiet_one) {
  static int const value = [&] {
    { base::lock_guard a_switch_point(quiet_one); }
    base::lock_guard others_have_it(busy);
    return ++initialised;
  }();
  return value;
}
template <int... N>
std::array<int (*)(base::mutex&, base::mutex&), sizeof...(N)> statics(std::integer_sequence<int, N...>) {
  return {&a_static<N>...};
}

TEST(hosts, threads_wait_for_a_static_that_another_thread_makes) {
  auto const all = statics(std::make_integer_sequence<int, 120>());
  for (std::size_t k = 0; k < all.size(); ++k) {
    rig r(k + 1);
    base::mutex busy, quiet_one, other;
    int values[2] = {};
    int const before = initialised;
    r.run({[&] { values[0] = all[k](busy, quiet_one); }, [&] { values[1] = all[k](busy, quiet_one); },
           [&] {
             base::lock_guard hold(busy);
             for (int i = 0; i < 3; ++i)
               base::lock_guard a_switch_point(other);
           }});
    ASSERT_EQ(r.why_over, "") << "seed " << k + 1;
    ASSERT_EQ(initialised, before + 1);
    ASSERT_EQ(values[0], values[1]);
  }
}

TEST(hosts, a_waiter_goes_on_when_notified_else_time_jumps) {
  for (auto const seed : orders(200)) {
    rig r(seed);
    base::mutex m;
    base::condition c;
    int given = 0, taken = 0;
    std::int64_t slept = 0;
    bool in_time = true;
    auto const taker = [&] {
      base::unique_lock lock(m);
      c.wait(lock, [&] { return given > 0; });
      --given, ++taken;
    };
    auto const giver = [&] {
      std::int64_t const from = base::now_ns();
      base::sleep_ns(3'600'000'000'000);
      slept = base::now_ns() - from;
      for (int i = 0; i < 2; ++i) {
        base::lock_guard lock(m);
        ++given;
        c.notify_one();
      }
    };
    r.run({taker, taker, giver, [&] {
             base::unique_lock lock(m);
             base::condition never;
             in_time = never.wait_for(lock, std::chrono::seconds(5), [] { return false; });
           }});
    ASSERT_EQ(taken, 2) << "seed " << seed;
    ASSERT_GE(slept, 3'600'000'000'000);
    ASSERT_FALSE(in_time);
    ASSERT_TRUE(r.findings().empty());
  }
}

// No seed: runs a thread until it waits, then the first runnable one. Wakes the last waiting thread.
struct in_order final : base::schedule_choices {
  int next(int now, std::span<int const>) noexcept override { return now; }
  int instead(int, std::span<int const> can) noexcept override { return can.front(); }
  std::size_t woken(std::size_t of) noexcept override {
    asked.push_back(of);
    return of - 1;
  }
  bool move() noexcept override { return false; }
  std::int64_t now_ns() noexcept override { return 0; }
  void jump(std::int64_t) noexcept override {}
  void stuck(std::string const&) noexcept override {}
  std::vector<std::size_t> asked;
};

TEST(hosts, a_thread_that_yields_is_not_chosen) {
  in_order choices;
  thread_scheduler threads(choices);
  threads.enter("main", thread_scheduler::life::while_needed);
  std::string order;
  threads.spawn("a", [&] {
    order += 'a';
    base::yield_thread();
    order += 'A';
  });
  threads.spawn("b", [&] { order += 'b'; });
  EXPECT_EQ(threads.join(), "");
  EXPECT_EQ(order, "abA");
}

TEST(hosts, the_thread_that_a_notification_wakes_is_a_choice) {
  in_order choices;
  thread_scheduler threads(choices);
  threads.enter("main", thread_scheduler::life::while_needed);
  base::mutex m;
  base::condition c;
  int given = 0;
  std::string order;
  for (char const name : {'a', 'b'}) {
    threads.spawn({name}, [&, name] {
      base::unique_lock lock(m);
      c.wait(lock, [&] { return given > 0; });
      --given;
      order += name;
    });
  }
  threads.spawn("gives", [&] {
    for (std::size_t i = 1; i <= 2; ++i) {
      {
        base::lock_guard const hold(m);
        ++given;
      }
      c.notify_one();
      while (order.size() < i)
        base::yield_thread();
    }
  });
  EXPECT_EQ(threads.join(), "");
  EXPECT_EQ(order, "ba");
  EXPECT_EQ(choices.asked, std::vector<std::size_t>{2});
}

TEST(hosts, objects_of_a_body_end_on_its_own_thread) {
  rig r(1);
  int ended_by = -1;
  r.threads.spawn("a", [owned = std::shared_ptr<int>(&ended_by, [](int* by) { *by = thread_scheduler::number(); })] {});
  EXPECT_EQ(r.threads.join(), "");
  EXPECT_EQ(ended_by, 1);
}

TEST(hosts, inner_threads_switch_and_exceptions_arrive) {
  for (auto const seed : orders(100)) {
    rig r(seed);
    bool inner_is_in = false;
    std::uint64_t id = 0, inner_id = 0;
    static base::per_thread<int> value;
    EXPECT_THROW(r.run({[&] {
      id = base::this_thread_id();
      ASSERT_EQ(value.get()++, 0) << "a kept thread begins anew";
      base::thread inner([&] {
        inner_is_in = r.threads.has_this_thread();
        inner_id = base::this_thread_id();
        ASSERT_EQ(value.get()++, 0);
      });
      inner.join();
      throw std::runtime_error("told");
    }}),
                 std::runtime_error);
    ASSERT_TRUE(inner_is_in);
    ASSERT_NE(id, inner_id);
  }
}

TEST(hosts, a_stream_moves_when_another_host_opens_its_gate) {
  for (auto const seed : orders(200)) {
    rig r(seed);
    auto& d = r.machine();
    auto const s = d.create_stream(0, driver::stream_kind::independent, 0).value;
    auto const gate = d.hold(0, s).value;
    std::string order;
    r.run({[&] {
             ASSERT_TRUE(d.synchronize_stream(0, s).ok());
             order += 's';
           },
           [&] {
             order += 'o';
             ASSERT_TRUE(d.open_gate(gate).ok());
           }});
    ASSERT_EQ(order, "os") << "seed " << seed;
    ASSERT_TRUE(r.findings().empty());
  }
}

TEST(hosts, a_wait_for_a_gate_that_never_opens_names_the_cycle) {
  rig r(1);
  auto& d = r.machine();
  auto const s = d.create_stream(0, driver::stream_kind::independent, 0).value;
  auto const gate = d.hold(0, s).value;
  r.run({[&] { ASSERT_EQ(d.synchronize_stream(0, s).what, driver::code::failed); }});
  ASSERT_EQ(r.findings().size(), 1u);
  EXPECT_EQ(r.findings()[0],
            "stuck: thread 0 (main) waits for the end of thread 1 (a); thread 1 (a) waits in a call: stream 1 of "
            "device 0 is held by gate 1");
  EXPECT_TRUE(r.why_over.empty()) << "it went on with an error";
  EXPECT_TRUE(d.open_gate(gate).ok());
}

TEST(hosts, a_thread_told_of_standstill_waits_until_notified) {
  rig r(1);
  base::mutex m;
  base::condition changed, asked_again;
  bool told = false;
  std::function<std::string()> const why = [] { return "for what never comes"; };
  r.run({[&] {
           base::unique_lock hold(m);
           EXPECT_FALSE(r.threads.wait_for_others(changed, hold, why));
           told = true;
           asked_again.notify_all();
           EXPECT_TRUE(r.threads.wait_for_others(changed, hold, why));
         },
         [&] {
           base::unique_lock hold(m);  // the other thread holds it until it waits again
           asked_again.wait(hold, [&] { return told; });
           changed.notify_all();
         }});
  EXPECT_EQ(r.why_over, "");
  EXPECT_EQ(r.findings().size(), 1u);
}

TEST(hosts, a_lock_that_was_tried_is_known_to_be_held) {
  for (auto const seed : orders(50)) {
    rig r(seed);
    base::mutex m;
    int inside = 0;
    auto const body = [&](bool tries) {
      return [&, tries] {
        if (tries ? !m.try_lock() : (m.lock(), false))
          return;
        EXPECT_EQ(inside++, 0);
        for (int i = 0; i < 3; ++i)
          base::yield_thread();
        --inside;
        m.unlock();
      };
    };
    r.run({body(true), body(false), body(true)});
    ASSERT_EQ(r.why_over, "") << "seed " << seed;
  }
}

TEST(hosts, a_lock_that_a_thread_outside_holds_is_waited_for) {
  rig r(1);
  base::mutex m;
  std::atomic<bool> held{false}, wanted{false}, given_back{false};
  std::thread outside([&] {
    base::lock_guard hold(m);
    held = true;
    while (!wanted)
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // meanwhile the other thread reaches the lock
    given_back = true;
  });
  while (!held)
    std::this_thread::yield();
  bool seen = false;
  r.run({[&] {
    wanted = true;
    base::lock_guard hold(m);
    seen = given_back;
  }});
  outside.join();
  EXPECT_TRUE(seen);
}

TEST(hosts, a_second_entry_reports_nothing_of_the_first) {
  rig r(1);
  r.threads.spawn("a", [] { base::yield_thread(); });
  r.threads.end();  // before it is joined
  r.threads.enter("main", thread_scheduler::life::until_left);
  r.run({[] {}});
  EXPECT_EQ(r.why_over, "");
}

TEST(scheduler_death, misuse_ends_the_process_with_its_reason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child has no kept threads
  EXPECT_DEATH(
      {
        rig r(1);
        r.threads.spawn("a", [] {
          for (int i = 0; i < 100; ++i)
            base::yield_thread();
        });
        r.threads.leave();
      },
      "the scheduler ends while its threads run");
  EXPECT_DEATH(
      {
        rig r(1);
        std::thread([&] { r.threads.end(); }).join();
      },
      "a thread outside the scheduler ends its machine");
  EXPECT_DEATH(
      {
        rig r(1);
        r.run({[] { base::thread([] { throw std::runtime_error("of a thread"); }).join(); }});
      },
      "terminate called.*\n.*of a thread");
  EXPECT_DEATH(
      {
        rig r(1);
        r.run({[] {
          for (std::uint64_t i = 0; i <= 2 * thread_scheduler::endless; ++i)
            base::switch_point();
        }});
      },
      "a stopped run does not end: the run does not end");
  EXPECT_DEATH(
      {
        rig r(1);
        base::atomic<bool> never = false;
        r.run({[&] {
          base::no_switch const one_step;
          while (!never.load())
            base::yield_thread();
        }});
      },
      "inside base::no_switch or with base::quiet");
  EXPECT_DEATH(
      {
        for (int i = 0; i < base::thread_slots; ++i)
          (void)base::detail::new_thread_slot();
        (void)base::detail::new_thread_slot();
      },
      "");
}

TEST(hosts, a_machine_refuses_a_thread_that_it_does_not_switch) {
  rig r(1);
  std::optional<driver::status> answer;
  std::thread stranger([&] { answer = r.machine().make_current(0); });
  stranger.join();
  EXPECT_EQ(answer->what, driver::code::not_permitted);
  ASSERT_EQ(r.findings().size(), 1u);
  EXPECT_EQ(r.findings()[0],
            "stranger: a thread not started by simulation::spawn called a machine with spawned threads");
}

}  // namespace
}  // namespace weir
