// Defects that users reported of other allocators, one test each where weir could have them. Each names its
// report. docs/lab/peers-defects.md lists all, with the tests in other files.
// Threads: one.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

#include "runtime/core/parts.h"
#include "streams/pinned/pinned_memory.h"
#include "tests/support/memory_bench.h"
#include "weir/copy.h"
#include "weir/observe.h"

namespace weir {
namespace {

using tests::memory_bench;
constexpr source_location at{"a test", "a test", 1};

// Runs another thread's actions inside calls that may wait for devices or other calls.
struct crowded final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  std::function<void()> other_thread;
  std::uint64_t events_made = 0, played = 0;
  bool maps = true;

  weir::driver::result<weir::driver::device_info> info(int device) override {
    auto i = fault_injector::info(device);
    i.value.maps = maps;  // false: segments only, like cudaMalloc and cudaFree
    return i;
  }
  weir::driver::result<weir::driver::memory_handle> create(int device, std::size_t bytes) override {
    return play(), fault_injector::create(device, bytes);
  }
  weir::driver::status map(weir::driver::address at, std::size_t bytes, weir::driver::memory_handle h) override {
    return play(), fault_injector::map(at, bytes, h);
  }
  weir::driver::status grant(weir::driver::address at, std::size_t bytes, int device) override {
    return play(), fault_injector::grant(at, bytes, device);
  }
  weir::driver::status unmap(weir::driver::address at, std::size_t bytes) override {
    return play(), fault_injector::unmap(at, bytes);
  }
  weir::driver::status release(weir::driver::memory_handle h) override { return play(), fault_injector::release(h); }
  weir::driver::status pin(void* host, std::size_t bytes) override { return play(), fault_injector::pin(host, bytes); }
  weir::driver::status unpin(void* host) override { return play(), fault_injector::unpin(host); }
  weir::driver::result<weir::driver::event_handle> create_event(int device, weir::driver::event_kind k) override {
    return ++events_made, play(), fault_injector::create_event(device, k);
  }
  weir::driver::status record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    return play(), fault_injector::record(device, s, e);
  }
  weir::driver::status wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    return play(), fault_injector::wait(device, s, e);
  }
  weir::driver::status query_event(weir::driver::event_handle e) override {
    return play(), fault_injector::query_event(e);
  }

 private:
  void play() {
    if (!other_thread)
      return;
    auto const once = std::exchange(other_thread, nullptr);
    ++played;
    once();
    other_thread = once;
  }
};

struct peers : ::testing::Test {
  explicit peers(bool maps = true, simulated::scheduling how = simulated::scheduling::stepped)
      : bench({.devices = 2, .memory = 4 << 20, .schedule = how, .seed = 1}, {},
              [this, maps](std::unique_ptr<driver::driver> m) {
                auto made = std::make_unique<crowded>(std::move(m));
                made->maps = maps;
                crowd = made.get();
                return made;
              }) {}
  memory::allocator& device() { return bench.on(0); }
  streams::pinned_memory& pinned() { return bench.core.part<streams::pinned_memory>(); }
  void* take(clock::stream_clock& s, std::size_t bytes) { return device().allocate(s, bytes, 0, at); }
  void give(void* p, clock::stream_clock* last = nullptr) { device().deallocate(p, last, at); }
  void busy(clock::stream_clock& s, int* runs = nullptr) {
    ASSERT_TRUE(bench.machine()
                    .enqueue(s.device(), s.handle(), {},
                             {[](void* n) {
                                if (n)
                                  ++*static_cast<int*>(n);
                              },
                              nullptr, runs})
                    .ok());
  }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(pinned().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  crowded* crowd = nullptr;
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
};

// CUB takes every answer except "not ready" for completion, errors too.
TEST_F(peers, a_question_that_is_refused_is_no_completion) {
  for (auto const code : {driver::code::failed, driver::code::out_of_memory, driver::code::invalid}) {
    for (char const* const call : {"query_event", "record", "create_event"}) {
      void* const p = take(a, 1 << 20);
      void* const h = pinned().allocate(2 << 20, 0, at);
      device().record_use(p, b, at);
      pinned().record_use(h, b);
      busy(b);
      give(p);
      pinned().deallocate(h, at);
      bench.control->fail_call(call, 1, code);
      void* const q = take(a, 1 << 20);
      EXPECT_NE(q, p) << call;
      void* const i = pinned().allocate(2 << 20, 0, at);
      EXPECT_NE(i, h) << call;
      bench.control->run();
      give(q);
      pinned().deallocate(i, at);
      ASSERT_TRUE(bench.clocks().synchronize(b.now()).ok() || bench.clocks().synchronize(b.now()).ok());
      sound();
    }
  }
}

// RMM's arena, CUB and DALI key their memory by the raw handle (rmm#2252 fixes the pool
// only). A new stream may get the handle of an ended one.
TEST_F(peers, a_reused_stream_handle_takes_over_nothing_in_use) {
  auto const foreign = [&](driver::stream_handle h) -> clock::stream_clock& {
    return bench.clocks().make(0, h, clock::life::foreign);
  };
  auto const first = bench.machine().create_stream(0, driver::stream_kind::independent, 0);
  clock::stream_clock& old = foreign(first.value);
  void* const p = take(old, 300'000);
  int runs = 0;
  busy(old, &runs);
  give(p);
  bench.clocks().retire(old);
  ASSERT_TRUE(bench.machine().destroy_stream(0, first.value).ok());
  clock::stream_clock& heir = foreign(first.value);  // the driver may reuse the handle; the clocks get it again
  EXPECT_FALSE(bench.clocks().complete(old.now()));
  EXPECT_FALSE(heir.covers(old.now()));
  EXPECT_NE(take(heir, 300'000), p);
  EXPECT_EQ(runs, 0);
  ASSERT_TRUE(bench.control->run());
  sound();
}

// rmm#841, #850: the wait is for the stream's latest event, and so covers all
// later work. weir waits for the first fence after the free.
TEST_F(peers, a_wait_for_freed_memory_uses_the_next_fence) {
  give(take(a, 3 << 20));
  auto const fence = a.fence();
  ASSERT_TRUE(fence.ok());
  busy(a);  // later, long work
  ASSERT_TRUE(a.fence().ok());
  ASSERT_NE(take(b, 3 << 20), nullptr);
  EXPECT_EQ(device().statistics().waits_inserted, 1u);
  int runs = 0;
  busy(b, &runs);
  ASSERT_TRUE(bench.control->step(0, a.handle()));  // the fence
  while (bench.control->step(0, b.handle())) {}
  EXPECT_EQ(runs, 1) << "b stands behind work that has nothing to do with the memory";
  ASSERT_TRUE(bench.control->run());
  sound();
}

// RMM's arena synchronizes if another stream frees; CCCL's buffer::set_stream synchronizes.
TEST_F(peers, giving_back_marking_and_handing_over_never_wait) {
  std::vector<void*> all;
  for (std::size_t bytes : {40, 700, 9000, 70'000, 300'000}) {
    for (int i = 0; i < 4; ++i)
      all.push_back(take(i % 2 ? a : b, bytes));
  }
  auto const on_a = bench.machine().hold(0, a.handle()), on_b = bench.machine().hold(0, b.handle());
  for (std::size_t i = 0; i < all.size(); ++i) {
    device().record_use(all[i], i % 3 ? a : b, at);
    if (i % 5 == 0)
      device().set_stream(all[i], i % 2 ? b : a, at);
    give(all[i], i % 4 ? &a : &b);
  }
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{}) << "the host waited for work that is held";
  ASSERT_TRUE(bench.machine().open_gate(on_a.value).ok() && bench.machine().open_gate(on_b.value).ok());
  ASSERT_TRUE(bench.control->run());
  sound();
}

// Paddle#38195, pytorch#68906: each use of a block on another stream creates and destroys an event.
TEST_F(peers, a_thousand_uses_elsewhere_make_few_events) {
  for (int i = 0; i < 1000; ++i) {
    void* const p = take(a, 100'000);
    device().record_use(p, b, at);
    busy(b);
    give(p);
    if (i % 10 == 9)
      bench.control->run();
  }
  EXPECT_LT(crowd->events_made, 80u);
  sound();
}

// pytorch#108367, #68906, rmm#1887: driver calls that wait are made
// under the allocator's lock, so every other thread waits too.
TEST_F(peers, a_driver_call_of_one_thread_delays_no_other_thread) {
  clock::stream_clock& mine = bench.stream(0);
  give(take(mine, 30'000));
  give(take(mine, 100));
  void* const warm = pinned().allocate(100, 0, at);
  crowd->other_thread = [&] {
    give(take(mine, 30'000));
    give(take(mine, 100));
    pinned().deallocate(pinned().allocate(100, 0, at), at);
  };
  for (int i = 0; i < 30; ++i) {
    void* const p = take(a, i % 3 ? 1 << 20 : 5000);
    void* const h = pinned().allocate(i % 4 ? 2 << 20 : 3000, 0, at);
    device().record_use(p, b, at);
    pinned().record_use(h, b);
    busy(b);
    give(p);
    pinned().deallocate(h, at);
    if (i % 5 == 4)
      bench.control->run();
    if (i % 10 == 9)
      device().empty_cache(), pinned().trim();
  }
  EXPECT_GT(crowd->played, 60u);
  crowd->other_thread = nullptr;
  pinned().deallocate(warm, at);
  bench.control->run();
  sound();
}

// pytorch#183501, #71745: one event list for all streams. Behind one incomplete event, 90 GB stay pending.
TEST_F(peers, a_wait_for_one_stream_delays_none_for_another) {
  auto const gate = bench.machine().hold(0, b.handle());
  clock::stream_clock& c = bench.stream(0);
  void *const held = take(a, 1 << 20), *const done = take(a, 1 << 20);
  void *const held_pinned = pinned().allocate(2 << 20, 0, at), *const done_pinned = pinned().allocate(2 << 20, 0, at);
  device().record_use(held, b, at), device().record_use(done, c, at);
  pinned().record_use(held_pinned, b), pinned().record_use(done_pinned, c);
  busy(b), busy(c);
  give(held), give(done);
  pinned().deallocate(held_pinned, at), pinned().deallocate(done_pinned, at);
  (void)bench.clocks().poll(c.now());  // a fence for both blocks
  while (bench.control->step(0, c.handle())) {}
  EXPECT_EQ(take(a, 1 << 20), done);
  EXPECT_EQ(pinned().allocate(2 << 20, 0, at), done_pinned);
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  sound();
}

// vllm#52951, Megatron-LM#6885, triton#11720: a new stream for
// every batch, and the memory of each stays cached: 32 GiB.
TEST_F(peers, streams_that_come_and_go_leave_no_memory_behind) {
  for (int i = 0; i < 40; ++i) {
    auto const made = bench.machine().create_stream(0, driver::stream_kind::independent, 0);
    clock::stream_clock& once = bench.clocks().make(0, made.value, clock::life::foreign);
    void* const p = take(once, 1 << 20);
    busy(once);
    give(p);
    bench.clocks().retire(once);
    ASSERT_TRUE(bench.machine().destroy_stream(0, made.value).ok());
    ASSERT_TRUE(bench.control->run());
  }
  EXPECT_LE(device().statistics().reserved_bytes.all.peak, 2 << 20);
  sound();
}

// pytorch#50925, cutorch#710, nccl#48: cudaFree waits for all devices, so
// a rank's kernel that waits for the next rank never ends.
struct peers_without_mapping : peers {
  peers_without_mapping() : peers(false, simulated::scheduling::seeded) {}
};
// A synchronization would wait for a rank that this thread has not yet served.
TEST_F(peers_without_mapping, memory_is_kept_under_a_collective) {
  give(take(b, 3 << 20));
  ASSERT_TRUE(bench.clocks().synchronize(b.now()).ok());
  auto const rank = bench.machine().hold(1, bench.stream(1).handle());
  clock::stream_clock& collective = bench.stream(0);
  collective.set_carries_collectives(true);
  auto const gate = bench.machine().hold(0, collective.handle());
  ASSERT_TRUE(rank.ok() && gate.ok());
  EXPECT_THROW(take(a, 3'500 << 10), out_of_memory);
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{}) << "the thread waited in the driver";
  ASSERT_TRUE(bench.machine().open_gate(rank.value).ok() && bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  EXPECT_NE(take(a, 3'500 << 10), nullptr);
  sound();
}

// Records the opened devices. On a GPU each open device costs half a gigabyte.
struct counting final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  std::set<int> opened;
  weir::driver::status open(int device) override { return opened.insert(device), fault_injector::open(device); }
};

// pytorch#3477, #10832, #195256, torchcomms#777: a use of another device creates a context on
// device 0. In weir, queries and new threads open nothing, work opens only its own device, and the
// end of a guard does not open the device that it restores.
TEST(peers_of_a_device, nothing_is_opened_on_an_unused_device) {
  auto owned = std::make_unique<counting>(driver::sim::make({.devices = 4, .memory = 64 << 20}).machine);
  auto& seen = *owned;
  auto const rt = make_runtime(std::move(owned), {}, "4 simulated devices");
  runtime_guard const in(*rt);
  EXPECT_EQ(device_count(), 4);
  EXPECT_EQ(current_device(), device(0));
  (void)get_device_properties(device(3));
  (void)memory_stats(device(3));
  std::thread([&] {
    runtime_guard const there(*rt);
    EXPECT_EQ(current_device(), device(0));
  }).join();
  EXPECT_EQ(seen.opened, std::set<int>{});
  {
    stream s(device(2));
    buffer const b(4096, {.on = device(2)}), out = pinned(4096);
    copy(s, out.data(), b.data(), 4096);
    event e;
    e.record(s);
    e.synchronize();
    synchronize(device(2));
    device_guard const on(2);
    stream_guard const by(s);
    buffer const here_too(4096);
  }
  EXPECT_EQ(seen.opened, std::set<int>{2});
}

}  // namespace
}  // namespace weir
