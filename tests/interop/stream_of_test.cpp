// The streams behind handles that other libraries name, and frees that name one.
// Threads: one, or as a test says.
#include "weir/stream_of.h"

#include <atomic>
#include <functional>
#include <thread>

#include "tests/interop/come_and_go.h"
#include "tests/interop/where.h"
#include "tests/support/refused.h"
#include "weir/c.h"
#include "weir/launch.h"

namespace weir {
namespace {

using stream_by_handle = test::on_simulated;

TEST_F(stream_by_handle, a_handle_is_one_stream_of_its_device) {
  stream_ref const legacy = detail::stream_of(gpu, nullptr);
  EXPECT_EQ(detail::stream_of(0, nullptr), legacy);
  EXPECT_EQ(detail::stream_of(0, reinterpret_cast<CUstream_st*>(1)), legacy) << "cudaStreamLegacy";
  stream_ref const there = detail::stream_of(1, nullptr);
  EXPECT_NE(there, legacy);
  EXPECT_EQ(there.device(), device(1));
  device_guard const on(1);
  EXPECT_EQ(detail::stream_of(gpu, nullptr), there);
}

CUstream_st* handle_of(stream_ref s) {  // as native(), which simulated devices have not
  return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(clock::find(s.id())->handle()));
}
void as_cuda_set_device(int d) {
  EXPECT_TRUE(runtime::current().get().machine().make_current(d).ok());
}

// A program's cudaSetDevice is no call of weir's.
TEST_F(stream_by_handle, the_current_device_is_cudas) {
  set_device(1);
  EXPECT_EQ(detail::device_in_cuda(), device(1));
  EXPECT_EQ(detail::stream_of(nullptr).device(), device(1));
  set_device(0), set_device(1);  // opens both
  as_cuda_set_device(0);
  EXPECT_EQ(current_device(), device(1)) << "weir's own";
  EXPECT_EQ(detail::device_in_cuda(), device(0));
  EXPECT_EQ(detail::stream_of(nullptr).device(), device(0));
  std::thread([&] {
    runtime_guard const too(*r);
    EXPECT_EQ(detail::device_in_cuda(), device(0)) << "none is current: weir's, which begins as 0";
  }).join();
}

// As after cudaMalloc: else cudaPointerGetAttributes tells no address on a thread where CUDA was not called.
TEST_F(stream_by_handle, a_first_call_leaves_a_device_current) {
  std::thread([&] {
    runtime_guard const too(*r);
    driver::driver& machine = runtime::current().get().machine();
    EXPECT_EQ(machine.current_device().value, driver::no_device);
    (void)detail::stream_of(nullptr);
    EXPECT_EQ(machine.current_device().value, 0);
  }).join();
  std::thread([&] {
    runtime_guard const too(*r);
    driver::driver& machine = runtime::current().get().machine();
    simulation::of(*r).lose_device(0);
    EXPECT_EQ(detail::device_in_cuda(), device(0)) << "a lost device is named, and fails where it is used";
    EXPECT_EQ(machine.current_device().value, driver::no_device);
  }).join();
}

// As a resource that is made with a device does, whatever the thread's memo knows of the handle.
TEST_F(stream_by_handle, a_call_for_a_device_leaves_one_current) {
  simulated_stream theirs(1);
  external_stream const known(1, theirs.handle());
  auto const on_a_fresh_thread = [&](auto const& body) {
    std::thread([&] {
      runtime_guard const too(*r);
      driver::driver& machine = runtime::current().get().machine();
      EXPECT_EQ(machine.current_device().value, driver::no_device);
      body(machine);
    }).join();
  };
  std::function<void()> const calls[] = {
      [] { (void)detail::stream_of(device(1), nullptr); }, [&] { (void)detail::stream_of(device(1), theirs.handle()); },
      [&] { (void)detail::stream_of(theirs.handle()); }, [] { EXPECT_EQ(detail::device_of_call(1), device(1)); }};
  for (auto const& call : calls) {
    on_a_fresh_thread([&](driver::driver& machine) {
      call();
      int const first = machine.current_device().value;
      EXPECT_NE(first, driver::no_device);
      call();
      EXPECT_EQ(machine.current_device().value, first);
    });
    on_a_fresh_thread([&](driver::driver& machine) {  // a guard ends, and with it what it made current
      {
        device_guard const inside(0);
        call();
      }
      EXPECT_EQ(machine.current_device().value, driver::no_device);
      call();
      EXPECT_NE(machine.current_device().value, driver::no_device);
    });
    on_a_fresh_thread([&](driver::driver& machine) {  // the memo knows the handles
      (void)borrow_stream(1, nullptr), (void)borrow_stream(1, theirs.handle());
      call();
      EXPECT_NE(machine.current_device().value, driver::no_device);
    });
  }
  on_a_fresh_thread([&](driver::driver& machine) {
    as_cuda_set_device(0);
    (void)detail::stream_of(device(1), nullptr);
    EXPECT_EQ(machine.current_device().value, 0) << "the program's choice stays";
  });
}

// A bare launch after the guard goes where it went before.
TEST_F(stream_by_handle, a_guard_leaves_cudas_device_as_it_was) {
  auto const in_cuda = [&] { return runtime::current().get().machine().current_device().value; };
  EXPECT_EQ(in_cuda(), driver::no_device);
  {
    device_guard const on(1);
    EXPECT_EQ(in_cuda(), 1);
  }
  EXPECT_EQ(in_cuda(), driver::no_device);
  set_device(0);
  as_cuda_set_device(1);
  {
    stream_guard const on(default_stream(0));
    EXPECT_EQ(in_cuda(), 0);
  }
  EXPECT_EQ(in_cuda(), 1);
}

TEST_F(stream_by_handle, a_handle_without_a_device_is_of_its_own) {
  simulated_stream borrowed(1), known(1), captured(1);
  external_stream const registered(1, known.handle());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(detail::stream_of(known.handle()), stream_ref(registered));
    EXPECT_EQ(detail::stream_of(borrowed.handle()).device(), device(1));
    EXPECT_EQ(detail::stream_of(borrowed.handle()), borrow_stream(1, borrowed.handle()));
    EXPECT_EQ(detail::stream_of(captured.handle()).device(), device(1));
  }
  captured.begin_capture(), known.begin_capture();
  EXPECT_EQ(detail::stream_of(captured.handle()).device(), device(1)) << "it was seen outside of its capture";
  EXPECT_EQ(detail::stream_of(known.handle()), stream_ref(registered));
  captured.end_capture(), known.end_capture();
  test::refused([&] { (void)detail::stream_of(device(0), borrowed.handle()); });
  test::refused([&] { (void)borrow_stream(0, known.handle()); });
}

// It is not registered a second time, so that its memory is one stream's and the fast path is open.
TEST_F(stream_by_handle, a_handle_of_weirs_stream_is_that_stream) {
  stream own{device(1)};
  auto* const handle = handle_of(own);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(detail::stream_of(handle), own.ref());
    EXPECT_EQ(detail::stream_of(1, handle), own.ref());
    EXPECT_EQ(borrow_stream(1, handle), own.ref());
  }
  EXPECT_EQ(detail::stream_of(handle_of(default_stream(0))), default_stream(0));
  {
    external_stream const twice(1, handle);
    EXPECT_EQ(stream_ref(twice), own.ref());
  }
  EXPECT_TRUE(own.query()) << "the end of a registration leaves it";
  auto& clocks = runtime::current().get().part<clock::clocks>();
  auto& its = *clock::find(own.id());
  EXPECT_EQ(&clocks.enrol(1, its.handle()), &its);
  EXPECT_TRUE(clocks.leave(its));
  EXPECT_FALSE(clocks.leave(its)) << "weir's own lease is not the program's to end";
  EXPECT_EQ(borrow_stream(1, handle), own.ref());
}

// As a container that is freed late: its stream has ended, and its handle names none, or another stream.
TEST_F(stream_by_handle, a_block_may_be_freed_after_its_stream) {
  for (bool const again : {false, true}) {
    std::optional<simulated_stream> theirs(0), later;
    auto* const handle = theirs->handle();
    void* const p = allocate(detail::stream_of(handle), 1_MiB);
    theirs.reset();
    if (again)
      later.emplace(0);
    detail::deallocate_on(gpu, handle, p);
    simulated_stream another(1);
    void* const q = allocate(detail::stream_of(another.handle()), 1_MiB);
    detail::deallocate_on(0, nullptr, q);
  }
  EXPECT_EQ(memory_allocated(0) + memory_allocated(1), 0u);
}

// The driver still runs what a destroyed stream was given. No stream can be told to wait for that work, so the
// host waits for the whole device.
TEST_F(stream_by_handle, a_free_waits_for_a_stream_that_has_ended) {
  std::atomic<bool> go{false}, done{false};
  stream home{device(0)};
  void* const p = allocate(home, 1_MiB);
  std::optional<simulated_stream> user(1);
  auto* const handle = user->handle();
  launch_host(detail::stream_of(handle), [&] { go.wait(false), done = true; });
  user.reset();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true, go.notify_all();
  });
  detail::deallocate_on(gpu, handle, p);
  EXPECT_TRUE(done);
  opener.join();
}

TEST_F(stream_by_handle, many_streams_of_a_door_leave_no_trace) {
  test::streams_come_and_go([](auto* s, size_t bytes) { return allocate(detail::stream_of(s), bytes); },
                            [](auto* s, void* p, size_t) { detail::deallocate_on(gpu, s, p); });
}

TEST_F(stream_by_handle, each_runtime_has_its_own) {
  stream_ref const here = detail::stream_of(0, nullptr);
  {
    runtime other{simulated{.devices = 1}};
    runtime_guard const in(other);
    EXPECT_NE(detail::stream_of(0, nullptr), here);
  }
  EXPECT_EQ(detail::stream_of(0, nullptr), here);
  here.synchronize();
}

TEST_F(stream_by_handle, what_is_no_stream_is_refused_each_time) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW((void)detail::stream_of(0, reinterpret_cast<CUstream_st*>(64)), invalid_use);
    test::refused([] { (void)detail::stream_of(7, nullptr); });
    test::refused([] { (void)detail::stream_of(cpu, nullptr); });
  }
}

}  // namespace
}  // namespace weir
