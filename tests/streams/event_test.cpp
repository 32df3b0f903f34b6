// Events through the public surface: what they stand for, and when.
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/sync.h"
#include "tests/streams/stepped_machine.h"
#include "tests/support/on_purpose.h"

namespace weir {
namespace {

using events = stepped_machine;

// A wait for it does nothing.
TEST_F(events, one_never_recorded_is_complete) {
  event e;
  stream a;
  EXPECT_TRUE(e.query());
  e.synchronize();
  a.ref().wait(e);
  EXPECT_EQ(e.native(), nullptr);
  work(a, 1);
  drain(a);
  EXPECT_EQ(log, std::vector{1});
}

TEST_F(events, an_event_stands_for_the_work_given_before_its_record) {
  stream a, b;
  work(a, 1);
  event const e = a.ref().record_event();
  work(a, 2);
  EXPECT_FALSE(e.query());
  b.ref().wait(e);
  work(b, 3);
  drain(b);
  EXPECT_TRUE(log.empty());
  step(a);
  step(a);  // the record itself
  EXPECT_TRUE(e.query());
  drain(b);
  EXPECT_EQ(log, (std::vector{1, 3}));
}

TEST_F(events, a_record_again_does_not_move_the_waits_before_it) {
  stream a, b, idle;
  event e;
  work(a, 1);
  e.record(a);
  b.ref().wait(e);
  work(b, 2);
  e.record(idle);
  drain(idle);
  EXPECT_TRUE(e.query());
  drain(b);
  EXPECT_TRUE(log.empty());
  drain(a);
  drain(b);
  EXPECT_EQ(log, (std::vector{1, 2}));
}

// The stamp before the event's first record must not be answered by its second, on a stream that is idle.
TEST_F(events, a_stamp_is_not_polled_through_an_event_recorded_again) {
  stream a, idle;
  event e;
  work(a, 1);
  stamp const s = a.ref().stamp();
  e.record(a);
  e.record(idle);
  drain(idle);
  EXPECT_FALSE(s.query());
  stream b;
  b.ref().wait(s);
  work(b, 2);
  drain(b);
  EXPECT_TRUE(log.empty());
  drain(a);
  EXPECT_TRUE(s.query());
}

TEST_F(events, a_stamp_may_be_polled_through_an_event_that_is_gone) {
  stream a;
  work(a, 1);
  stamp const s = a.ref().stamp();
  { event const e = a.ref().record_event(); }
  auto const before = rt.get().part<clock::clocks>().counted();
  EXPECT_FALSE(s.query());
  drain(a);
  EXPECT_TRUE(s.query());
  EXPECT_EQ(rt.get().part<clock::clocks>().counted().fences, before.fences);
}

// Without a driver call.
TEST_F(events, a_complete_one_answers_for_earlier_stamps) {
  stream a, b;
  work(a, 1);
  stamp const s = a.ref().stamp();
  b.ref().wait(a);
  event const e = b.ref().record_event();
  e.synchronize();
  auto const before = rt.get().part<clock::clocks>().counted();
  EXPECT_TRUE(s.query());
  EXPECT_EQ(rt.get().part<clock::clocks>().counted().polls, before.polls);
}

TEST_F(events, a_refused_record_leaves_the_event_as_it_was) {
  stream a, b;
  event e;
  work(a, 1);
  e.record(a);
  control.fail_call("record", 1, driver::code::failed);
  refused<driver_error>([&] { e.record(b); });
  EXPECT_FALSE(e.query());
  b.ref().wait(e);
  work(b, 2);
  drain(b);
  EXPECT_TRUE(log.empty());
  drain(a);
  EXPECT_TRUE(e.query());
  e.record(b);
  drain(b);
  EXPECT_EQ(log, (std::vector{1, 2}));
}

TEST_F(events, an_event_is_of_one_device) {
  stream a{0}, b{1};
  event e;
  e.record(a);
  std::string const said = refused<invalid_use>([&] { e.record(b); });
  EXPECT_NE(said.find("gpu:0"), std::string::npos) << said;
  EXPECT_NE(said.find("gpu:1"), std::string::npos) << said;
  b.ref().wait(e);  // waiting elsewhere is fine
}

// What cannot be timed is refused.
TEST_F(events, time_passes_between_two_timed_ones) {
  stream a, other{1};
  event start{{.timing = true}}, end{{.timing = true}}, untimed, never{{.timing = true}}, there{{.timing = true}};
  start.record(a);
  work(a, 1);
  end.record(a);
  untimed.record(a);
  there.record(other);
  refused<invalid_use>([&] { start.elapsed_time(end); });  // not complete
  end.synchronize();
  EXPECT_GE(start.elapsed_time(end).count(), 0.f);
  refused<invalid_use>([&] { start.elapsed_time(untimed); });
  refused<invalid_use>([&] { untimed.elapsed_time(end); });
  refused<invalid_use>([&] { start.elapsed_time(never); });
  there.synchronize();
  refused<invalid_use>([&] { start.elapsed_time(there); });
}

TEST_F(events, a_time_that_the_driver_does_not_tell_is_no_time) {
  stream a;
  event start{{.timing = true}}, end{{.timing = true}};
  start.record(a);
  end.record(a);
  end.synchronize();
  control.fail_call("elapsed_ms", 1, driver::code::failed);
  refused<driver_error>([&] { start.elapsed_time(end); });
}

TEST_F(events, an_endless_host_wait_names_its_cycle) {
  stream a;
  auto const gate = machine.hold(0, streams::clock_of(a).handle());
  event const e = a.ref().record_event();
  EXPECT_NE(refused<driver_error>([&] { e.synchronize(); }).find("waited forever"), std::string::npos);
  ASSERT_TRUE(machine.open_gate(gate.value).ok());
  tests::reported_on_purpose();
}

// It can be recorded in another.
TEST_F(events, one_may_outlive_its_runtime) {
  event e;
  {
    runtime other{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
    runtime_guard inside{other};
    stream s;
    e.record(s);
  }
  EXPECT_TRUE(e.query());
  stream a;
  work(a, 1);
  e.record(a);
  EXPECT_FALSE(e.query());
  drain(a);
  EXPECT_TRUE(e.query());
}

TEST_F(events, an_event_on_a_lost_device_says_so) {
  stream a, b{1};
  work(a, 1);
  event const e = a.ref().record_event();
  control.lose_device(0);
  refused<device_lost>([&] { (void)e.query(); });
  refused<device_lost>([&] { e.synchronize(); });
  refused<device_lost>([&] { b.ref().wait(e); });
  b.ref().synchronize();
}

TEST_F(events, a_query_behind_a_lost_device_answers_lost) {
  stream a, b{1};
  work(a, 1);
  b.ref().wait(a.ref().record_event());
  event const e = b.ref().record_event();
  EXPECT_FALSE(e.query());
  control.lose_device(0);
  refused<device_lost>([&] { (void)e.query(); });
  refused<device_lost>([&] { b.ref().synchronize(); });
}

TEST(ended_machine, nothing_is_left_of_streams_and_events) {
  std::optional<std::vector<std::string>> left;
  event kept;
  {
    runtime rt{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
    runtime_guard in{rt};
    driver::sim::controls_of(rt.get().machine())->at_end([&](auto const& census) { left = census; });
    stream a, b;
    kept.record(a);
    b.ref().wait(a);
    event e{{.timing = true}};
    e.record(b);
    EXPECT_FALSE(a.ref().stamp().query());
  }
  ASSERT_TRUE(left);
  EXPECT_EQ(*left, std::vector<std::string>{});
}

TEST_F(events, a_forked_child_gets_a_typed_error) {
  stream a;
  event e;
  e.record(a);
  e.synchronize();
  ASSERT_TRUE(e.query());
  pid_t const child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      (void)e.query();
    } catch (error const& refusal) {
      code = refusal.operation() == "event::query" ? 0 : 2;
    } catch (...) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weir
