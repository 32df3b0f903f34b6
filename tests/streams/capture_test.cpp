// weir beside captures that it did not begin: what is given to a captured stream, asked of it, and what
// everything else does meanwhile.
// Threads: one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "tests/support/refused.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/memory.h"

namespace weir {
namespace {

using driver::capture_mode;
using driver::code;

struct beside_captures : testing::TestWithParam<std::uint64_t> {  // 0: threads, else a seed
  std::vector<int> log;
  std::mutex logging;
  runtime rt{simulated{.devices = 2,
                       .memory = 64_MiB,
                       .schedule = GetParam() ? simulated::scheduling::seeded : simulated::scheduling::threads,
                       .seed = GetParam() + 1}};
  runtime_guard in{rt};
  driver::driver& machine = rt.get().machine();
  clock::clocks& clocks = rt.get().part<clock::clocks>();
  stream s{gpu, priority::normal}, t{gpu, priority::normal}, other{gpu, priority::normal};

  void work(stream_ref on, int x) {
    auto& line = streams::clock_of(on);
    auto* const body = new std::function<void()>([this, x] {
      std::lock_guard const lock(logging);
      log.push_back(x);
    });
    EXPECT_TRUE(machine
                    .enqueue(line.device(), line.handle(), {},
                             {[](void* f) { (*static_cast<std::function<void()>*>(f))(); },
                              [](void* f) { delete static_cast<std::function<void()>*>(f); }, body})
                    .ok());
  }
  driver::stream_handle handle(stream_ref of) { return streams::clock_of(of).handle(); }
  void begin(stream_ref on, capture_mode mode = capture_mode::global) {
    ASSERT_TRUE(machine.begin_capture(0, handle(on), mode).ok());
  }
  // Ends a capture that nothing has spoiled.
  driver::graph_handle end(stream_ref on) {
    auto const kept = machine.end_capture(0, handle(on));
    EXPECT_TRUE(kept.ok()) << "the capture was spoiled";
    return kept.value;
  }
  void drop(driver::graph_handle g) { EXPECT_TRUE(machine.destroy_graph(g).ok()); }
  void run(driver::graph_handle g, stream_ref on) {
    auto const ready = machine.instantiate(0, g);
    ASSERT_TRUE(ready.ok());
    EXPECT_TRUE(machine.launch_graph(0, handle(on), ready.value).ok());
    on.synchronize();
    EXPECT_TRUE(machine.destroy_executable(ready.value).ok());
    drop(g);
  }
  void TearDown() override { EXPECT_EQ(clocks.validate(), std::vector<std::string>{}); }
};

std::vector<std::uint64_t> every() {
  std::vector<std::uint64_t> all{0};
  char const* const seed = std::getenv("WEIR_TEST_SEED");
  std::uint64_t const first = seed ? std::strtoull(seed, nullptr, 0) : 1;
  for (std::uint64_t i = 0; i < (seed ? 1u : 12u); ++i)
    all.push_back(first + i);
  return all;
}
INSTANTIATE_TEST_SUITE_P(machine, beside_captures, testing::ValuesIn(every()), [](auto const& of) {
  return of.param ? "seed_" + std::to_string(of.param) : std::string("threads");
});

TEST_P(beside_captures, a_capture_stays_whole_whatever_weir_does) {
  buffer mine(1000, {.on = gpu}), marked(3_MiB, {.on = gpu}), of_s, host = pinned(4096), other_host = pinned(4096);
  {
    stream_guard const on(s);
    of_s = buffer(3_MiB, {.on = gpu});
  }
  marked.record_stream(s);
  host.record_stream(s);
  (void)s.record_event();
  for (capture_mode const mode : {capture_mode::global, capture_mode::this_thread, capture_mode::relaxed}) {
    begin(s, mode);
    work(s, 1);
    marked.reset();  // their stamps are of the captured stream: no fence can be had for them now
    host.reset();
    of_s.reset();
    {
      stream_guard const on(other);
      std::vector<buffer> several;
      for (std::size_t bytes : {100_KiB, 3_MiB, 20_MiB, 512_KiB})
        several.emplace_back(bytes, buffer_options{.on = gpu});
      for (int i = 0; i < 8; ++i)
        several.emplace_back(16u << i, buffer_options{.on = gpu});
      EXPECT_THROW(buffer(60_MiB, {.on = gpu}), out_of_memory);  // the whole ladder: polls, waits, fences, unmaps
      copy(several[0].data(), other_host.data(), 4096);
      (void)pinned(3_MiB);
    }
    (void)other.record_event().query();
    t.wait(other);
    t.synchronize();
    (void)empty_cache();
    (void)other.query();
    (void)rt.get().part<memory::device_memory>().on(0).report();
    work(s, 2);
    drop(end(s));
    other.synchronize();
    s.synchronize();
    {
      stream_guard const on(s);
      of_s = buffer(3_MiB, {.on = gpu});
    }
    marked = buffer(3_MiB, {.on = gpu});
    marked.record_stream(s);
    host = pinned(4096);
    host.record_stream(s);
  }
  EXPECT_TRUE(log.empty());
}

struct at_the_wait final : driver::fault_injector::watcher {
  std::function<void()> does;
  void comes(driver::call c) noexcept override {
    if (c == driver::call::synchronize_device && does)
      std::exchange(does, nullptr)();
  }
};

// weir looks for captures before it waits for a device. One that began after the look was spoiled.
TEST(captures_of_others, begin_when_the_device_was_waited_for) {
  runtime rt{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in(rt);
  stream const s;
  std::promise<void> begun, waited;
  std::string why;
  std::thread other;
  at_the_wait now;
  now.does = [&] {
    other = std::thread([&] {
      runtime_guard const here(rt);
      try {
        (void)graph::capture(s, [&] {
          begun.set_value();
          waited.get_future().wait();
          deallocate(allocate(s, 1000));
        });
      } catch (std::exception const& e) {
        why = e.what();
      }
    });
    (void)begun.get_future().wait_for(std::chrono::milliseconds(50));
  };
  driver::fault_injector& machine = *driver::fault_injector_of(rt.get().machine());
  machine.watch(&now);
  synchronize(gpu);
  machine.watch(nullptr);
  waited.set_value();
  other.join();
  EXPECT_EQ(why, "");
}

// Even before the capture was met: its cache is empty, so the driver is asked.
TEST_P(beside_captures, a_capture_that_weir_did_not_begin_has_memory) {
  begin(s);
  std::vector<void*> inside;
  for (std::size_t bytes : {std::size_t{16}, 100_KiB, 3_MiB})
    inside.push_back(allocate(s, bytes));
  deallocate(inside[1]);
  EXPECT_EQ(allocate(s, 100_KiB), inside[1]) << "freed inside, it serves again inside";
  void* const elsewhere = allocate(t, 100_KiB);
  auto const g = end(s);
  void* const ordinary = allocate(s, 100_KiB);
  EXPECT_NE(ordinary, inside[1]);
  for (void* const p : inside)
    deallocate(p);
  deallocate(elsewhere), deallocate(ordinary);
  auto& memory = rt.get().part<memory::device_memory>().on(0);
  (void)empty_cache();
  EXPECT_GE(memory.report().reserved, 3_MiB) << "the graph may be launched";
  drop(g);
  (void)empty_cache();
  EXPECT_EQ(memory.report().reserved, 0u) << "the graph is gone";
  EXPECT_EQ(memory.validate(), std::vector<std::string>{});
}

// Other code captures a registered stream: a thread's cache must not serve an ordinary block into its graph.
TEST_P(beside_captures, a_registered_stream_is_asked_before_a_cache) {
  auto const made = machine.create_stream(0, driver::stream_kind::independent, 0);
  ASSERT_TRUE(made.ok());
  std::set<void*> cached;
  {
    external_stream const theirs(gpu, reinterpret_cast<CUstream_st*>(made.value));
    for (std::size_t bytes : {std::size_t{64}, 100_KiB}) {
      std::vector<void*> several;
      for (int i = 0; i < 40; ++i)
        several.push_back(allocate(theirs, bytes));
      for (void* const p : several)
        cached.insert(p), deallocate(p);
      EXPECT_TRUE(cached.contains(several.front()));
    }
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(machine.begin_capture(0, made.value, capture_mode::relaxed).ok());
      std::vector<void*> inside;
      for (std::size_t bytes : {std::size_t{64}, 100_KiB, std::size_t{64}, 100_KiB}) {
        inside.push_back(allocate(theirs, bytes));
        EXPECT_FALSE(cached.contains(inside.back())) << bytes << " B";
      }
      auto const g = machine.end_capture(0, made.value);
      ASSERT_TRUE(g.ok());
      void* const outside = allocate(theirs, 100_KiB);
      EXPECT_TRUE(cached.contains(outside)) << "it is captured no more";
      deallocate(outside);
      for (void* const p : inside)
        deallocate(p);
      drop(g.value);
    }
  }
  EXPECT_TRUE(machine.destroy_stream(0, made.value).ok());
  EXPECT_EQ(rt.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
}

TEST_P(beside_captures, streams_fork_and_join_inside_by_waits) {
  begin(s);
  work(s, 1);
  t.wait(s);
  EXPECT_TRUE(t.ref().is_capturing());
  work(t, 2);
  s.wait(t);
  work(s, 3);
  auto const g = end(s);
  EXPECT_FALSE(t.ref().is_capturing());
  EXPECT_TRUE(log.empty());
  run(g, other);
  EXPECT_EQ(log, (std::vector{1, 2, 3}));
}

// They order what is inside.
TEST_P(beside_captures, events_recorded_inside_are_no_events_outside) {
  event e, f, outside{{.timing = true}}, inside{{.timing = true}};
  e.record(t);
  outside.record(t);
  stamp const before = t.stamp();
  begin(s);
  work(s, 1);
  e.record(s);
  t.wait(e);
  work(t, 2);
  f.record(t);
  s.wait(f);
  inside.record(s);
  work(s, 3);
  EXPECT_NE(test::refused([&] { (void)outside.elapsed_time(inside); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(test::refused([&] { (void)e.query(); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(test::refused([&] { f.synchronize(); }).find("inside a capture"), std::string::npos);
  run(end(s), other);
  EXPECT_EQ(log, (std::vector{1, 2, 3}));
  EXPECT_NE(test::refused([&] { (void)e.query(); }).find("behind the launch"), std::string::npos);
  (void)test::refused([&] { other.wait(e); });
  e.record(other);
  e.synchronize();
  EXPECT_TRUE(e.query());
  before.synchronize();  // its fence's event was recorded again inside: another fence answers
  EXPECT_TRUE(before.query());
}

// That spoils nothing.
TEST_P(beside_captures, captured_work_is_neither_asked_nor_awaited) {
  event outside;
  outside.record(other);
  stamp const work_of_other = other.stamp();
  begin(s);
  work(s, 1);
  EXPECT_NE(test::refused([&] { (void)s.query(); }).find("capture"), std::string::npos);
  EXPECT_NE(test::refused([&] { s.synchronize(); }).find("capture"), std::string::npos);
  EXPECT_NE(test::refused([&] { synchronize(gpu); }).find("nd the capture on this device first"), std::string::npos);
  (void)test::refused([&] { s.stamp().synchronize(); });
  (void)test::refused([&] { s.wait(other); });
  work(other, 2);
  (void)test::refused([&] { s.wait(other.stamp()); });
  (void)test::refused([&] { t.wait(s.stamp()); });
  EXPECT_FALSE(t.ref().is_capturing()) << "a stamp is of a stream's own work: waiting for it joins no capture";
  other.synchronize();
  s.wait(work_of_other);  // known to be complete: nothing to wait for, at any launch
  s.wait(outside);
  drop(end(s));
  synchronize(gpu);
  EXPECT_EQ(log, std::vector{2});
}

TEST_P(beside_captures, order_outside_is_not_order_inside) {
  void* const p = allocate(t, 3_MiB);
  work(t, 1);
  s.wait(t);
  stamp const known = t.stamp();
  (void)known;
  auto& line = streams::clock_of(s);
  auto const fenced = clock::stamp{t.id(), streams::clock_of(t).now().n - 1};
  EXPECT_TRUE(line.covers(fenced));
  begin(s);
  EXPECT_TRUE(s.ref().is_capturing());
  EXPECT_EQ(line.covers(fenced), clocks.complete(fenced));
  drop(end(s));
  EXPECT_FALSE(s.ref().is_capturing());
  EXPECT_TRUE(line.covers(fenced));
  deallocate(p);
}

// A fence recorded after the capture.
TEST_P(beside_captures, a_pinned_free_inside_needs_a_fence_after_it) {
  auto& pool = rt.get().part<streams::pinned_memory>();
  void* const p = pool.allocate(2_MiB, 0, source_location::current());
  begin(s);
  pool.record_use(p, streams::clock_of(s));
  pool.deallocate(p, source_location::current());
  void* const q = pool.allocate(2_MiB, 0, source_location::current());
  EXPECT_NE(p, q) << "the stream that may use it is captured: nothing is known of it";
  drop(end(s));
  s.synchronize();
  void* const r = pool.allocate(2_MiB, 0, source_location::current());
  EXPECT_EQ(r, p);
  pool.deallocate(q, source_location::current());
  pool.deallocate(r, source_location::current());
}

}  // namespace
}  // namespace weir
