// Rule M18 of docs/reference/simulated-machine.md, on every machine: any
// thread may call, and its current device stays the same.
#include <algorithm>

#include "tests/conformance/kernels.h"
#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class threads : public conformance {
 protected:
  // Makes every call of the driver interface except make_current. None may change the thread's device.
  void call_everything(int d) {
    int const mine = current_device();
    auto const left_alone = [&](char const* call) {
      EXPECT_EQ(current_device(), mine) << call << " changed the caller's device";
    };
#define CALL(call)             \
  do {                         \
    EXPECT_OK(machine().call); \
    left_alone(#call);         \
  } while (false)
#define MAKE(name, call)            \
  auto const name = machine().call; \
  EXPECT_OK(name.is);               \
  left_alone(#call)
    MAKE(about, info(d));
    CALL(open(d));
    MAKE(room, memory(d));
    MAKE(reach, peer(0, d));
    MAKE(at, reserve(page(), 0));
    MAKE(pages, create(d, page()));
    CALL(map(at.value, page(), pages.value));
    CALL(grant(at.value, page(), d));
    auto* const words = reinterpret_cast<std::uint32_t*>(at.value);
    MAKE(segment, create_segment(d, page()));
    auto* const host = pinned(4096);
    std::uint32_t const pageable[4] = {};
    left_alone("pin");
    MAKE(found, find(host));
    MAKE(s, create_stream(d, stream_kind::independent, 0));
    MAKE(b, create_stream(d, stream_kind::blocking, -1));
    MAKE(e, create_event(d, event_kind::timing));
    MAKE(f, create_event(d, event_kind::timing));
    for (stream_handle const each : {s.value, b.value, stream_handle::legacy, stream_handle::per_thread}) {
      MAKE(is, capturing(d, each));
      auto* const native = reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(each));
      MAKE(adopted, adopt(d, native));
      MAKE(identity, identify(d, native));
      CALL(record(d, each, e.value));
      CALL(fill(d, each, words, 7, 4, 4));
      CALL(copy(d, each, host, words, 16));
      CALL(upload(d, each, words + 16, pageable, 16));
      CALL(copy_peer(d, each, words + 8, d, words, d, 16));
      CALL(host_function(d, each, {[](void*) {}, nullptr, nullptr}));
      MAKE(gate, hold(d, each));
      CALL(open_gate(gate.value));
      CALL(record(d, each, f.value));
      CALL(wait(d, each, f.value));
      CALL(synchronize_stream(d, each));
      CALL(query_stream(d, each));
      CALL(synchronize_event(f.value));
      CALL(query_event(f.value));
      MAKE(took, elapsed_ms(e.value, f.value));
    }
    CALL(begin_capture(d, s.value, capture_mode::global));
    CALL(fill(d, s.value, words, 8, 4, 4));
    MAKE(graph, end_capture(d, s.value));
    MAKE(ready, instantiate(d, graph.value));
    CALL(launch_graph(d, s.value, ready.value));
    CALL(synchronize_device(d));
    CALL(destroy_executable(ready.value));
    CALL(destroy_graph(graph.value));
    CALL(destroy_event(d, e.value));
    CALL(destroy_event(d, f.value));
    CALL(destroy_stream(d, s.value));
    CALL(destroy_stream(d, b.value));
    CALL(release_segment(d, segment.value));
    CALL(unmap(at.value, page()));
    CALL(unreserve(at.value, page()));
    CALL(release(pages.value));
#undef CALL
#undef MAKE
    EXPECT_EQ(host[0], 7u);
  }
};
WEIR_CONFORMANCE(threads);

TEST_P(threads, m18_a_thread_without_a_device_may_call_everything) {
  elsewhere([&] { call_everything(0); });
}

TEST_P(threads, m18_calls_on_one_device_leave_another_current) {
  NEED_DEVICES(2);
  EXPECT_OK(machine().make_current(0));
  call_everything(1);
  EXPECT_OK(machine().make_current(1));
  call_everything(0);
  elsewhere([&] { call_everything(1); });
}

// What another library made current is seen, too: on GPUs CUDA is asked.
TEST_P(threads, m18_the_current_device_is_each_threads_own) {
  auto const current = [&] {
    auto const is = machine().current_device();
    EXPECT_OK(is.is);
    return is.value;
  };
  EXPECT_OK(machine().make_current(0));
  EXPECT_EQ(current(), 0);
  elsewhere([&] {
    EXPECT_EQ(current(), driver::no_device);
    EXPECT_OK(machine().make_current(0));
    EXPECT_EQ(current(), 0);
    EXPECT_OK(machine().make_current(driver::no_device));
    EXPECT_EQ(current(), driver::no_device);
    EXPECT_EQ(current_device(), -1);
  });
  EXPECT_EQ(current(), 0);
  EXPECT_SAYS(code::invalid, machine().make_current(99));
  EXPECT_EQ(current(), 0) << "a refused call changes nothing";
  NEED_DEVICES(2);
  EXPECT_OK(machine().make_current(1));
  EXPECT_EQ(current(), 1);
  EXPECT_OK(machine().make_current(0));
}

TEST_P(threads, m18_refused_calls_leave_it_too) {
  NEED_DEVICES(2);
  EXPECT_OK(machine().make_current(0));
  int const mine = current_device();
  auto const s = stream(1);
  auto const e = event(0);
  EXPECT_SAYS(code::invalid, machine().record(1, s, e));
  EXPECT_EQ(current_device(), mine);
  EXPECT_SAYS(code::invalid, machine().copy(1, s, reinterpret_cast<void*>(64), &e, 4));
  EXPECT_EQ(current_device(), mine);
  EXPECT_SAYS(code::out_of_memory, machine().create(1, std::size_t{1} << 46).is);
  EXPECT_EQ(current_device(), mine);
  EXPECT_SAYS(code::not_permitted, machine().end_capture(1, s).is);
  EXPECT_EQ(current_device(), mine);
}

// A driver may reuse a handle at once. The new stream is empty, and old work does not hold it.
TEST_P(threads, m18_a_stream_under_a_reused_handle_is_another) {
  auto const first = machine().create_stream(0, stream_kind::independent, 0);
  ASSERT_OK(first.is);
  auto const fresh = stream(0);
  log(0, fresh, 1000);  // the first of its kind may block
  finish(0, fresh);
  auto& g = hold(0, first.value);
  log(0, first.value, 1);
  EXPECT_OK(machine().destroy_stream(0, first.value));
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto const s = machine().create_stream(0, stream_kind::independent, 0);
    ASSERT_OK(s.is);
    EXPECT_OK(machine().query_stream(0, s.value));
    log(0, s.value, 2 + i);
    finish(0, s.value);
    EXPECT_OK(machine().destroy_stream(0, s.value));
  }
  auto const before = logged();
  EXPECT_EQ(before.size(), 101u);
  EXPECT_EQ(std::count(before.begin(), before.end(), 1u), 0);
  g.open();
  EXPECT_OK(machine().synchronize_device(0));
  EXPECT_EQ(logged().back(), 1u);
}

TEST_P(threads, m18_threads_use_and_free_each_others_objects) {
  stream_handle s{};
  event_handle e{};
  elsewhere([&] {
    s = machine().create_stream(0, stream_kind::independent, 0).value;
    e = machine().create_event(0, event_kind::order_only).value;
    EXPECT_OK(machine().record(0, s, e));
  });
  log(0, s, 1);
  elsewhere([&] {
    finish(0, s);
    EXPECT_OK(machine().query_event(e));
  });
  EXPECT_EQ(logged(), std::vector<std::uint32_t>{1});
  EXPECT_OK(machine().destroy_event(0, e));
  EXPECT_OK(machine().destroy_stream(0, s));
}

}  // namespace
}  // namespace weir::conformance
