// Rules M7, M11, M15 and M16 for a lost device. On GPUs each test runs in its own process.
#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class loss : public conformance {
 protected:
  // Loses gpu:0 while a gate holds work there. Work of gpu:1 on
  // `behind`, and event `f` after it, wait for that work for ever.
  struct owed {
    stream_handle behind, idle;
    event_handle f;
    gate_handle held;
  };
  owed lose_what_another_waits_for() {
    auto const culprit = stream(0), s = stream(0);
    auto const e = event(0);
    auto const held = machine().hold(0, s);
    EXPECT_OK(held.is);
    owed const out{stream(1), stream(1), event(1), held.value};
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(1, out.behind, e));
    log(1, out.behind, 1);
    EXPECT_OK(machine().record(1, out.behind, out.f));
    EXPECT_SAYS(code::not_ready, machine().query_event(out.f));
    crash(0, culprit);
    return out;
  }
};
WEIR_CONFORMANCE(loss);

TEST_P(loss, m15_every_later_call_answers_lost_with_one_number) {
  if (!alone())
    return;
  auto const s = stream(0);
  auto const e = event(0), f = event(0);
  auto const b = memory(0);
  auto* const h = pinned(4096);
  std::uint32_t const pageable[1] = {7};
  EXPECT_OK(machine().record(0, s, f));
  finish(0, s);
  auto const segment = machine().create_segment(0, page());
  ASSERT_OK(segment.is);
  crash(0, s);
  int const number = machine().query_stream(0, s).native;
  driver::work nothing;
  nothing.run = [](void*) {};
  std::vector<std::function<status()>> const calls{
      [&] { return machine().query_stream(0, s); },
      [&] { return machine().synchronize_stream(0, s); },
      [&] { return machine().synchronize_device(0); },
      [&] { return machine().create_stream(0, stream_kind::independent, 0).is; },
      [&] { return machine().record(0, s, e); },
      [&] { return machine().wait(0, s, f); },
      [&] { return machine().query_event(f); },
      [&] { return machine().synchronize_event(f); },
      [&] { return machine().create_event(0, event_kind::order_only).is; },
      [&] { return machine().copy(0, s, b.words(), h, 4); },
      [&] { return machine().upload(0, s, b.words(), pageable, 4); },
      [&] { return machine().fill(0, s, b.words(), 1, 4, 1); },
      [&] { return machine().host_function(0, s, nothing); },
      [&] { return machine().copy_peer(0, s, b.words(), 0, h, 0, 4); },
      [&] { return machine().elapsed_ms(e, f).is; },
      [&] { return machine().capturing(0, s).is; },
      [&] { return machine().hold(0, s).is; },
      [&] { return machine().memory(0).is; },
      [&] { return machine().create(0, page()).is; },
      [&] { return machine().create_segment(0, page()).is; },
      [&] { return machine().release_segment(0, segment.value); },
      [&] { return machine().destroy_event(0, e); },
      [&] { return machine().destroy_stream(0, s); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    status const said = calls[i]();
    EXPECT_EQ(said.what, code::lost) << driver::name_of(said.what);
    EXPECT_EQ(said.native, number);
  }
}

TEST_P(loss, m15_pages_and_addresses_are_still_made_and_freed) {
  if (!alone())
    return;
  auto const s = stream(0);
  auto const at = machine().reserve(2 * page(), 0), late = machine().reserve(page(), 0);
  auto const handle = machine().create(0, page()), other = machine().create(0, page());
  ASSERT_OK(at.is);
  ASSERT_OK(handle.is);
  EXPECT_OK(machine().map(at.value, page(), handle.value));
  EXPECT_OK(machine().grant(at.value, page(), 0));
  crash(0, s);
  EXPECT_OK(machine().map(at.value + page(), page(), other.value));
  EXPECT_OK(machine().grant(at.value, 2 * page(), 0));
  auto const where = machine().find(reinterpret_cast<void*>(at.value + page()));
  EXPECT_OK(where.is);
  EXPECT_EQ(where.value.in, driver::where::device);
  EXPECT_OK(machine().find(&at).is);
  EXPECT_OK(machine().unmap(at.value, page()));
  EXPECT_OK(machine().unmap(at.value + page(), page()));
  EXPECT_OK(machine().release(handle.value));
  EXPECT_OK(machine().release(other.value));
  EXPECT_OK(machine().unreserve(at.value, 2 * page()));
  EXPECT_OK(machine().unreserve(late.value, page()));
  EXPECT_OK(machine().reserve(page(), 0).is);
  EXPECT_OK(machine().make_current(0));
}

TEST_P(loss, m15_host_memory_is_pinned_as_long_as_any_device_lives) {
  if (!alone())
    return;
  auto* const h = pinned(4096);
  std::vector<stream_handle> streams;
  int const n = machine().device_count();
  NEED_DEVICES(n);
  for (int d = 0; d < n; ++d)
    streams.push_back(stream(d));
  void* const more = h;
  EXPECT_OK(machine().unpin(more));
  for (int d = 0; d < n; ++d) {
    bool any = false;
    for (int i = 0; i < n; ++i)
      any |= lives(i, streams[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(any || (d > 0 && on_cuda())) << d << " simulated devices were lost, one at a time";
    EXPECT_SAYS(any ? code::ok : code::lost, machine().pin(more, 4096));
    if (any) {
      EXPECT_OK(machine().unpin(more));
    }
    crash(d, streams[static_cast<std::size_t>(d)]);
  }
  EXPECT_SAYS(code::lost, machine().pin(more, 4096));
}

TEST_P(loss, m7_m15_pending_work_is_dropped_and_never_complete) {
  if (!alone())
    return;
  auto const s = stream(0), culprit = stream(0);
  auto const e = event(0);
  static std::atomic<int> runs{0}, drops{0};
  runs = drops = 0;
  driver::work w;
  w.run = [](void*) { ++runs; };
  w.drop = [](void*) { ++drops; };
  auto const held = machine().hold(0, s);
  ASSERT_OK(held.is);
  log(0, s, 1);
  EXPECT_OK(machine().host_function(0, s, w));
  EXPECT_OK(machine().record(0, s, e));
  crash(0, culprit);
  machine().open_gate(held.value);
  EXPECT_SAYS(code::lost, machine().query_event(e));
  EXPECT_SAYS(code::lost, machine().synchronize_stream(0, s));
  for (int i = 0; i < 200 && drops == 0 && !seeded(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(drops, 1);
  EXPECT_TRUE(logged().empty());
}

TEST_P(loss, m15_a_device_lost_alone_lets_the_others_go_on) {
  NEED_DEVICES(2);
  if (on_cuda())
    GTEST_SKIP() << "what a fault takes with it is the next test";
  auto const s = stream(0), other = stream(1);
  auto const e = event(1), of_lost = event(0);
  auto const b = memory(1);
  EXPECT_OK(machine().record(0, s, of_lost));
  auto& g = hold(1, other);
  store(1, other, b.words(), 9);
  crash(0, s);
  EXPECT_SAYS(code::lost, machine().wait(1, other, of_lost));
  g.open();
  EXPECT_OK(machine().record(1, other, e));
  finish(1, other);
  EXPECT_OK(machine().query_event(e));
  EXPECT_EQ(read(b), 9u);
}

TEST_P(loss, m15_a_wait_for_a_lost_device_loses_its_own_device) {
  NEED_DEVICES(2);
  if (!alone())
    return;
  auto const it = lose_what_another_waits_for();
  EXPECT_SAYS(code::lost, machine().synchronize_event(it.f));
  EXPECT_SAYS(code::lost, machine().synchronize_stream(1, it.behind));
  EXPECT_SAYS(code::lost, machine().synchronize_device(1));
  EXPECT_SAYS(code::lost, machine().query_stream(1, it.idle));
  machine().open_gate(it.held);
  EXPECT_TRUE(logged().empty());
}

TEST_P(loss, m15_a_query_of_a_lost_device_loses_its_own_device) {
  NEED_DEVICES(2);
  if (!alone())
    return;
  auto const it = lose_what_another_waits_for();
  EXPECT_SAYS(code::lost, machine().query_event(it.f));
  EXPECT_SAYS(code::lost, machine().query_stream(1, it.behind));
  EXPECT_SAYS(code::lost, machine().query_stream(1, it.idle));
  machine().open_gate(it.held);
  EXPECT_TRUE(logged().empty());
}

TEST_P(loss, m15_a_fault_leaves_another_device_whole_or_lost) {
  NEED_DEVICES(2);
  if (!alone())
    return;
  auto const s = stream(0), other = stream(1), idle = stream(1);
  auto const e = event(1), of_lost = event(0);
  auto const b = memory(1), ungranted = memory(1);
  auto* const h = pinned(4096);
  static std::atomic<int> runs{0}, drops{0};
  runs = drops = 0;
  driver::work w;
  w.run = [](void*) { ++runs; };
  w.drop = [](void*) { ++drops; };
  EXPECT_OK(machine().record(0, s, of_lost));
  auto& g = hold(1, other);
  store(1, other, b.words(), 9);
  EXPECT_OK(machine().host_function(1, other, w));
  EXPECT_EQ(runs + drops, 0);
  a_device_will_be_lost();
  store(0, s, ungranted.words(), 2);
  EXPECT_SAYS(code::lost, machine().synchronize_stream(0, s));
  EXPECT_SAYS(code::lost, machine().wait(1, other, of_lost));
  bool const lived = lives(1, idle);
  EXPECT_TRUE(lived || on_cuda() || seeded());
  g.open();
  if (lived) {
    EXPECT_OK(machine().record(1, other, e));
    finish(1, other);
    EXPECT_OK(machine().query_event(e));
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(read(b), 9u);
    auto const more = memory(1);
    write(more, 4);
    EXPECT_EQ(read(more), 4u);
  } else {
    EXPECT_SAYS(code::lost, machine().query_stream(1, idle));
    EXPECT_SAYS(code::lost, machine().synchronize_stream(1, other));
    EXPECT_SAYS(code::lost, machine().synchronize_device(1));
    EXPECT_SAYS(code::lost, machine().record(1, other, e));
    EXPECT_SAYS(code::lost, machine().query_event(e));
    EXPECT_SAYS(code::lost, machine().copy(1, idle, b.words(), h, 4));
    EXPECT_SAYS(code::lost, machine().fill(1, idle, b.words(), 1, 4, 1));
    EXPECT_SAYS(code::lost, machine().create_stream(1, stream_kind::independent, 0).is);
    EXPECT_SAYS(code::lost, machine().create_event(1, event_kind::order_only).is);
    EXPECT_SAYS(code::lost, machine().create(1, page()).is);
    EXPECT_SAYS(code::lost, machine().memory(1).is);
    EXPECT_OK(machine().unmap(ungranted.at, ungranted.bytes));
    EXPECT_EQ(runs, 0);
  }
  for (int i = 0; i < 200 && drops == 0 && !seeded(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(drops, 1);
}

TEST_P(loss, m16_a_kernel_in_ungranted_memory_loses_its_device) {
  NEED_DEVICES(2);
  if (!alone())
    return;
  auto const s = stream(0), other = stream(1);
  auto const b = memory(1);
  write(b, 1);
  a_device_will_be_lost();
  store(0, s, b.words(), 2);
  EXPECT_SAYS(code::lost, machine().synchronize_stream(0, s));
  if (lives(1, other)) {
    EXPECT_EQ(read(b), 1u);
  } else {
    EXPECT_TRUE(on_cuda() || seeded());
    EXPECT_SAYS(code::lost, machine().synchronize_stream(1, other));
  }
}

TEST_P(loss, m11_work_on_unmapped_addresses_loses_its_device) {
  if (!alone())
    return;
  auto const s = stream(0);
  auto const b = memory(0);
  EXPECT_OK(machine().unmap(b.at, b.bytes));
  a_device_will_be_lost();
  store(0, s, b.words(), 2);
  EXPECT_SAYS(code::lost, machine().synchronize_stream(0, s));
}

// Or the unmap waits for the work.
TEST_P(loss, m11_held_work_on_unmapped_pages_loses_its_device) {
  if (!alone())
    return;
  auto const s = stream(0);
  auto const b = memory(0);
  auto const held = machine().hold(0, s);
  ASSERT_OK(held.is);
  a_device_will_be_lost();
  store(0, s, b.words(), 2);
  std::atomic<bool> unmapped{false};
  auto const unmap = [&] {
    EXPECT_OK(machine().unmap(b.at, b.bytes));
    unmapped = true;
  };
  std::thread other;
  if (seeded()) {
    unmap();  // does not wait for a closed gate
  } else {
    other = std::thread(unmap);
    for (int i = 0; i < 100 && !unmapped; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  bool const waited = !unmapped;
  EXPECT_OK(machine().open_gate(held.value));
  if (other.joinable())
    other.join();
  EXPECT_SAYS(waited ? code::ok : code::lost, machine().synchronize_stream(0, s));
}

TEST_P(loss, m11_mapped_memory_is_out_of_reach_until_it_is_granted) {
  if (!alone())
    return;
  auto const s = stream(0);
  auto const at = machine().reserve(page(), 0);
  auto const handle = machine().create(0, page());
  ASSERT_OK(at.is);
  ASSERT_OK(handle.is);
  EXPECT_OK(machine().map(at.value, page(), handle.value));
  a_device_will_be_lost();
  store(0, s, reinterpret_cast<std::uint32_t*>(at.value), 2);
  EXPECT_SAYS(code::lost, machine().synchronize_stream(0, s));
}

}  // namespace
}  // namespace weir::conformance
