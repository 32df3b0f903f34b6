// Registered streams whose program promised to announce captures: what that saves, and what a broken promise is told.
// Threads: one, where a test does not say otherwise.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/space/memory_pool.h"
#include "simulator/faults/fault_injector.h"
#include "streams/stream/context.h"
#include "tests/support/refused.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct announced_captures : testing::Test {
  struct questions final : driver::fault_injector::watcher {
    int count = 0;
    void comes(driver::call c) noexcept override {
      count += c == driver::call::capturing || c == driver::call::capture_of;
    }
  };
  static constexpr external_stream_options promise{.announces_captures = true};

  runtime rt{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard in{rt};
  simulated_stream theirs;
  std::optional<external_stream> on{std::in_place, gpu, theirs.handle(), promise};
  driver::fault_injector& machine = *driver::fault_injector_of(rt.get().machine());

  void SetUp() override {
    if (!base::has_process_wide_fence() || rt.get().observer())
      GTEST_SKIP() << "no allocation goes without a lock";
  }
  void TearDown() override {
    on.reset();
    EXPECT_EQ(rt.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }
  // Of so many pairs, after as many that fill caches.
  int questions_of(int pairs, std::size_t bytes) {
    questions asked;
    for (int half = 0; half < 2; ++half) {
      machine.watch(half ? &asked : nullptr);
      for (int i = 0; i < pairs; ++i)
        deallocate(allocate(*on, bytes));
    }
    machine.watch(nullptr);
    return asked.count;
  }
  bool is_of_graph(void const* p) {
    auto const found = rt.get().part<memory::device_memory>().on(0).find(p);
    return found && found->pool && found->pool->is == memory::memory_pool::kind::graph;
  }
  void announce() { EXPECT_TRUE(stream_ref(*on).is_capturing()); }
};

TEST_F(announced_captures, save_the_question_of_each_allocation) {
  for (std::size_t bytes : {std::size_t{64}, 100_KiB})
    EXPECT_LT(questions_of(100, bytes), 5) << bytes << " B: a fence asks, too";
  on.emplace(gpu, theirs.handle());
  for (std::size_t bytes : {std::size_t{64}, 100_KiB})
    EXPECT_GE(questions_of(100, bytes), 100) << bytes << " B, without the promise";
}

// The end needs no call. Any thread announces.
TEST_F(announced_captures, get_memory_of_the_graph) {
  for (std::size_t bytes : {std::size_t{64}, 100_KiB}) {
    EXPECT_LT(questions_of(100, bytes), 5) << bytes << " B: a fence asks, too";
    for (bool const elsewhere : {false, true}) {
      theirs.begin_capture();
      elsewhere ? std::thread([&] { announce(); }).join() : announce();
      void* const p = allocate(*on, bytes);
      EXPECT_TRUE(is_of_graph(p)) << bytes << " B";
      theirs.end_capture();
      void* const q = allocate(*on, bytes);
      EXPECT_FALSE(is_of_graph(q)) << bytes << " B, after the capture";
      deallocate(p), deallocate(q);
    }
    EXPECT_LT(questions_of(100, bytes), 5) << bytes << " B: the promise goes on";
  }
}

// weir begins them, or makes the stream join them.
TEST_F(announced_captures, of_weir_need_no_call) {
  stream const s;
  auto const one = [&](stream_ref first, stream_ref second) {
    (void)graph::capture(first, [&] {
      second.wait(first);
      void* const p = allocate(*on, 64);
      EXPECT_TRUE(is_of_graph(p));
      deallocate(p);
      first.wait(second);
    });
  };
  EXPECT_LT(questions_of(100, 64), 5);
  one(s, *on);
  EXPECT_LT(questions_of(100, 64), 5);
  one(*on, s);
}

TEST_F(announced_captures, that_were_not_are_told_by_the_next_call) {
  stream const other;
  event const done = other.record_event();
  buffer const b(*on, 1_MiB);
  std::vector<char> host(64);
  std::pair<char const*, std::function<void(stream_ref)>> const calls[] = {
      {"allocate", [](stream_ref s) { deallocate(allocate(s, 3_MiB)); }},
      {"launch",
       [](stream_ref s) {
         launch(
             s, {}, [](CUstream_st*) {}, [] {});
       }},
      {"launch_host", [](stream_ref s) { launch_host(s, [] {}); }},
      {"copy", [&](stream_ref s) { copy(s, b.data(), host.data(), host.size()); }},
      {"fill", [&](stream_ref s) { fill(s, b.data(), std::byte{1}, 64); }},
      {"event::record", [](stream_ref s) { (void)s.record_event(); }},
      {"stream::wait", [&](stream_ref s) { s.wait(other.stamp()); }},
      {"stream::wait", [&](stream_ref s) { s.wait(done); }},
      {"stream::wait", [&](stream_ref s) { s.wait(other); }},
  };
  for (auto const& [name, call] : calls) {
    theirs.begin_capture();
    std::string const said = test::refused([&] { call(*on); });
    EXPECT_NE(said.find(std::string(": ") + name + ": "), std::string::npos) << said;
    for (char const* part : {"in a capture that was not announced", "is_capturing()", "announces_captures"})
      EXPECT_NE(said.find(part), std::string::npos) << name << ": " << part;
    EXPECT_NE(said.find("stream " + std::to_string(stream_ref(*on).id()) + " of gpu:0"), std::string::npos) << said;
    void* const p = allocate(*on, 3_MiB);  // weir knows of the capture now
    theirs.end_capture();
    EXPECT_FALSE(stream_ref(*on).is_capturing());
    call(*on);
    deallocate(p);
  }
}

// A stream that is never captured keeps the promise, also while the driver refuses to say so.
TEST_F(announced_captures, are_not_inferred_from_a_refused_question) {
  machine.refuse({.of = driver::call::capturing, .with = driver::code::failed, .by_contract = false});
  EXPECT_NO_THROW(deallocate(allocate(*on, 3_MiB)));
  theirs.begin_capture();
  machine.refuse({.of = driver::call::capturing, .with = driver::code::failed, .by_contract = false});
  EXPECT_THROW((void)stream_ref(*on).is_capturing(), driver_error) << "not announced: the caller is told";
  announce();
  theirs.end_capture();
}

// Another owner of the same stream may capture it without a word.
TEST_F(announced_captures, need_the_promise_of_each_registration) {
  {
    external_stream const again(gpu, theirs.handle(), promise);
    EXPECT_EQ(questions_of(100, 64), 0);
    external_stream const unpromised(gpu, theirs.handle());
    EXPECT_GE(questions_of(100, 64), 100);
    theirs.begin_capture();
    void* const p = allocate(*on, 64);
    EXPECT_TRUE(is_of_graph(p));
    theirs.end_capture();
    deallocate(p);
  }
  EXPECT_GE(questions_of(100, 64), 100) << "once withdrawn, until the last registration ends";
  on.reset();
  external_stream const anew(gpu, theirs.handle(), {.announces_captures = true});
  on.emplace(gpu, theirs.handle(), promise);
  EXPECT_EQ(questions_of(100, 64), 0);
}

}  // namespace
}  // namespace weir
