// Captures of streams by handle, on simulated devices: weir learns their end, and nothing is asked of what has gone.
// Threads: one, or as a test says.
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "runtime/clock/stream_clock.h"
#include "tests/interop/handles_fixture.h"
#include "weir/memory.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

using namespace by_handle;

// What is asked of a captured stream: only whether it is, and in which capture. Its memory is of the graph.
TEST_F(handles, a_capture_survives_its_streams_being_named) {
  simulated_stream theirs(0);
  theirs.begin_capture();
  stream_ref const inside = borrow_stream(0, theirs.handle());
  EXPECT_EQ(borrow_stream(0, theirs.handle()), inside);
  void* const of_graph = allocate(borrow_stream(0, theirs.handle()), small);
  EXPECT_TRUE(inside.is_capturing());
  theirs.end_capture();  // throws if it was spoiled
  EXPECT_EQ(borrow_stream(0, theirs.handle()).id(), inside.id()) << "known by its id from now on";
  deallocate(of_graph);
  deallocate(borrow_stream(0, theirs.handle()), allocate(borrow_stream(0, theirs.handle()), small));
}

// The handle is not named again, or its stream has gone: a stream that has joined tells that its capture is over.
TEST_F(handles, a_capture_that_is_over_keeps_nobody_from_a_wait) {
  for (bool const exists : {true, false}) {
    for (int times = 0; times < 3; ++times) {
      auto theirs = std::make_unique<simulated_stream>(device(0));
      theirs->begin_capture();
      deallocate(borrow_stream(0, theirs->handle()), allocate(borrow_stream(0, theirs->handle()), small));
      EXPECT_TRUE(has(refused([&] { synchronize(0); }), "weir-152")) << "the capture goes on";
      theirs->end_capture();  // throws if it was spoiled
      if (!exists)
        theirs.reset();
      EXPECT_NO_THROW(synchronize(0)) << exists;
    }
  }
}

TEST_F(handles, captures_at_once_are_told_apart) {
  std::array<std::unique_ptr<simulated_stream>, 3> theirs;
  for (auto& one : theirs) {
    one = std::make_unique<simulated_stream>(device(0));
    one->begin_capture();
    (void)borrow_stream(0, one->handle());
    (void)borrow_stream(0, one->handle());
  }
  for (auto& one : theirs) {
    EXPECT_TRUE(has(refused([&] { synchronize(0); }), "weir-152"));
    one->end_capture();
    one.reset();
  }
  EXPECT_NO_THROW(synchronize(0));
}

TEST_F(handles, captures_that_ended_together_are_asked_once_each) {
  constexpr std::size_t n = 100;
  std::vector<std::unique_ptr<simulated_stream>> theirs;
  for (std::size_t i = 0; i < n; ++i) {
    theirs.push_back(std::make_unique<simulated_stream>(device(0)));
    theirs.back()->begin_capture();
    (void)borrow_stream(0, theirs.back()->handle());
  }
  for (auto& one : theirs)
    one->end_capture();
  auto const before = owned->watch->captures_asked();
  synchronize(0);
  EXPECT_LE(owned->watch->captures_asked() - before, 3 * n);
}

// Two threads capture their per-thread streams, which have one handle, and name them in turn.
TEST_F(handles, captures_of_per_thread_streams_are_told_apart) {
  auto* const per_thread = reinterpret_cast<CUstream_st*>(2);
  constexpr int turns = 40;
  auto& all = rt().get().part<clock::clocks>();
  std::atomic<int> turn{0};
  std::array<std::size_t, 2> at_first{}, at_last{};
  auto const act = [&](int self) {
    runtime_guard const here(rt());
    auto& driver = rt().get().machine();
    (void)borrow_stream(0, per_thread);  // the device is open
    EXPECT_TRUE(driver.begin_capture(0, driver::stream_handle::per_thread, driver::capture_mode::relaxed).ok());
    for (int i = 0; i < turns; ++i) {
      while (turn.load() % 2 != self)
        std::this_thread::yield();
      EXPECT_TRUE(borrow_stream(0, per_thread).is_capturing());
      (i == 0 ? at_first : at_last)[static_cast<std::size_t>(self)] = all.size();
      ++turn;
    }
    auto const graph = driver.end_capture(0, driver::stream_handle::per_thread);
    EXPECT_TRUE(graph.ok());
    (void)driver.destroy_graph(graph.value);
  };
  std::thread other([&] { act(1); });
  act(0);
  other.join();
  EXPECT_EQ(at_first[1], at_last[1]);
}

// No driver call tells the capture of a handle that has gone. The event makes the capture known to weir.
TEST_F(handles, a_block_outlives_a_stream_that_was_captured) {
  void* const p = allocate(default_stream(0), small);
  {
    simulated_stream theirs(0);
    theirs.begin_capture();
    record_stream(p, borrow_stream(0, theirs.handle()));
    (void)borrow_stream(0, theirs.handle()).record_event();
    theirs.end_capture();
  }
  EXPECT_NO_THROW(deallocate(p));
  EXPECT_EQ(memory_allocated(0), 0u);
}

TEST_F(handles, a_known_stream_in_a_capture_comes_back) {
  simulated_stream theirs(0);
  void* const p = allocate(borrow_stream(0, theirs.handle()), small);
  auto const id = borrow_stream(0, theirs.handle()).id();
  theirs.begin_capture();
  EXPECT_NE(borrow_stream(0, theirs.handle()).id(), id) << "it could be another stream by now";
  deallocate(borrow_stream(0, theirs.handle()), p);
  theirs.end_capture();
  EXPECT_EQ(borrow_stream(0, theirs.handle()).id(), id);
  simulated_stream registered_inside(0);
  registered_inside.begin_capture();
  external_stream const e(0, registered_inside.handle());
  registered_inside.end_capture();
}

}  // namespace
}  // namespace weir
