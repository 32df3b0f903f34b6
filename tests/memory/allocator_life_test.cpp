// The allocator of one device on machines of several kinds: pages, fences, a fork, its end, and machines that
// cannot map.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;

struct no_mapping final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  weir::driver::result<weir::driver::device_info> info(int device) override {
    auto i = fault_injector::info(device);
    i.value.maps = false;
    return i;
  }
};

TEST(allocator_pages, handles_are_the_largest_fitting_power_of_two) {
  memory_bench bench({.devices = 1, .memory = std::size_t{256} << 30});
  memory::allocator& d = bench.on(0);
  clock::stream_clock& s = bench.stream(0);
  void* const p = d.allocate(s, 1102 << 20, 0, at);
  EXPECT_EQ(d.statistics().segment.all.current, 34 + 3) << "34 of 32, 8 + 4 + 2 MiB";
  EXPECT_EQ(d.statistics().reserved_bytes.all.current, 1102 << 20);
  void* const small = d.allocate(s, 100, 0, at);
  EXPECT_EQ(d.statistics().reserved_bytes.all.current, 1104 << 20);
  d.deallocate(p, nullptr, at);
  d.deallocate(small, nullptr, at);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

TEST(allocator_layout, parts_of_a_range_agree_with_the_counters) {
  memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  memory::allocator& d = bench.on(0);
  clock::stream_clock& s = bench.stream(0);
  std::vector<void*> all;
  for (std::size_t const bytes : {100, 100, 100, 100, 3000, 40'000, 300'000, 300'000})
    all.push_back(d.allocate(s, bytes, 0, at));
  for (std::size_t const i : {0, 1, 5, 6})
    d.deallocate(std::exchange(all[i], nullptr), nullptr, at);
  std::size_t reserved = 0, live = 0;
  for (memory::mapped_range const& r : d.layout()) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < r.parts.size(); ++i) {
      memory::mapped_range::part const& p = r.parts[i];
      EXPECT_EQ(p.at, r.at + sum) << "parts lie side by side";
      EXPECT_GT(p.bytes, 0u);
      EXPECT_FALSE(i && p.is == memory::mapped_range::use::free && r.parts[i - 1].is == memory::mapped_range::use::free)
          << "what is free is one part";
      sum += p.bytes;
      live += p.is == memory::mapped_range::use::live ? p.bytes : 0;
    }
    EXPECT_EQ(sum, r.bytes);
    reserved += sum;
  }
  auto const n = d.statistics();
  EXPECT_EQ(reserved, static_cast<std::size_t>(n.reserved_bytes.all.current));
  EXPECT_EQ(live, static_cast<std::size_t>(n.allocated_bytes.all.current));
  auto const streams = d.by_stream();
  ASSERT_EQ(streams.size(), 1u);
  EXPECT_EQ(streams[0].allocated, live);
  EXPECT_EQ(streams[0].pending, 0u);
  EXPECT_EQ(streams[0].cached, reserved - live);
  for (void* const p : all)
    d.deallocate(p, nullptr, at);
}

// The frees record fences only beside a second active stream.
TEST(allocator_pages, a_fence_is_recorded_for_each_16_mib_freed) {
  memory_bench bench({.devices = 1, .memory = std::size_t{1} << 30});
  memory::allocator& d = bench.on(0);
  clock::stream_clock& a = bench.stream(0);
  auto const free_64_MiB = [&] {
    for (int i = 0; i < 64; ++i)
      d.deallocate(d.allocate(a, 1 << 20, 0, at), nullptr, at);
  };
  free_64_MiB();
  EXPECT_EQ(d.statistics().fences, 0u);
  EXPECT_EQ(bench.clocks().counted().fences, 0u);
  (void)d.allocate(bench.stream(0), 100, 0, at);
  free_64_MiB();
  EXPECT_EQ(d.statistics().fences, 2u) << "after 16 MiB, and after 32 more without a query";
}

// The child's error leaves the parent's memory unchanged.
TEST(allocator_forked, a_child_gets_a_typed_error) {
  memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  memory::allocator& d = bench.on(0);
  clock::stream_clock& s = bench.stream(0);
  void* const p = d.allocate(s, 100'000, 0, at);
  pid_t const child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      (void)d.allocate(s, 100, 0, at);
    } catch (not_supported const&) {
      d.deallocate(p, nullptr, at);
      code = d.empty_cache() == 0 ? 0 : 2;
    } catch (...) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(d.find(p));
  d.deallocate(p, nullptr, at);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

TEST(teardown, held_memory_is_reported_and_stays_valid) {
  std::vector<std::string> left;
  ::testing::internal::CaptureStderr();
  {
    memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
    bench.control->at_end([&](std::vector<std::string> const& census) { left = census; });
    clock::stream_clock& s = bench.stream(0);
    (void)bench.on(0).allocate(s, 100'000, 0, at);
    bench.on(0).deallocate(bench.on(0).allocate(s, 1 << 20, 0, at), nullptr, at);
    ASSERT_TRUE(bench.machine().destroy_stream(0, s.handle()).ok());
  }
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("1 block (98 KiB)"), std::string::npos);
  std::size_t mappings = 0;
  for (auto const& l : left)
    mappings += l.find("mapping") != std::string::npos;
  EXPECT_GT(mappings, 0u) << "the held block's pages";
}

TEST(teardown, nothing_is_left_of_a_runtime_without_blocks) {
  std::vector<std::string> left{"never called"};
  {
    memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
    bench.control->at_end([&](std::vector<std::string> const& census) { left = census; });
    clock::stream_clock& s = bench.stream(0);
    clock::stream_clock& t = bench.stream(0);
    void* const p = bench.on(0).allocate(s, 1 << 20, 0, at);
    bench.on(0).record_use(p, t, at);
    bench.on(0).deallocate(p, nullptr, at);
    for (auto* l : {&s, &t})
      ASSERT_TRUE(bench.machine().destroy_stream(0, l->handle()).ok());
  }
  EXPECT_EQ(left, std::vector<std::string>{});
}

TEST(allocator_segments, serve_behind_the_same_arena) {
  memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1}, {},
                     [](std::unique_ptr<driver::driver> m) { return std::make_unique<no_mapping>(std::move(m)); });
  memory::allocator& d = bench.on(0);
  clock::stream_clock& s = bench.stream(0);
  std::vector<void*> all;
  for (std::size_t bytes : {100, 5000, 40'000, 1'000'000, 0})
    all.push_back(d.allocate(s, bytes, 0, at));
  EXPECT_EQ(d.find(static_cast<char*>(all[3]) + 999'999)->base, all[3]);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
  EXPECT_THROW((void)d.allocate(s, 3'500'000, 0, at), out_of_memory);
  EXPECT_THROW(d.deallocate(static_cast<char*>(all[3]) + 512, nullptr, at), invalid_use);
  for (void* p : all)
    d.deallocate(p, nullptr, at);
  EXPECT_NE(d.allocate(s, 3'500'000, 0, at), nullptr) << "the ladder gives whole segments back";
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

// No run of slots is available.
TEST(allocator_segments, the_smallest_size_gets_a_granule) {
  memory_bench bench({.devices = 1,
                      .memory = 4 << 20,
                      .schedule = simulated::scheduling::stepped,
                      .seed = 1,
                      .virtual_memory = false});
  memory::allocator& d = bench.on(0);
  d.set_limit(page);
  EXPECT_NE(d.allocate(bench.stream(0), 1, 0, at), nullptr);
  EXPECT_EQ(d.statistics().reserved_bytes.all.current, std::int64_t{page});
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

// A segment that was returned no longer counts.
TEST(allocator_segments, a_refused_one_is_reported_again) {
  constexpr std::size_t bytes = 1 << 20;
  memory_bench bench({.devices = 1,
                      .memory = 4 << 20,
                      .schedule = simulated::scheduling::stepped,
                      .seed = 1,
                      .virtual_memory = false});
  memory::allocator& d = bench.on(0);
  clock::stream_clock& s = bench.stream(0);
  auto& history = observe::history::process();
  history.start(100, false);
  void* const p = d.allocate(s, bytes, 0, at);
  d.deallocate(p, nullptr, at);
  bench.control->fail_call("release_segment", 1, driver::code::failed);
  EXPECT_EQ(d.empty_cache(), 0u);
  EXPECT_EQ(d.allocate(s, bytes, 0, at), p);
  d.deallocate(p, nullptr, at);
  EXPECT_EQ(d.empty_cache(), bytes);
  history.stop();
  std::vector<observe::action> told;
  for (observe::event const& e : history.events(static_cast<std::uint32_t>(bench.core.id()), 0)) {
    if (e.what == observe::action::map || e.what == observe::action::unmap)
      told.push_back(e.what);
  }
  using enum observe::action;
  EXPECT_EQ(told, (std::vector{map, unmap, map, unmap}));
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(d.allocate(s, bytes, 0, at), nullptr);
  EXPECT_EQ(d.statistics().cached_bytes.all.peak, std::int64_t{bytes}) << "both are live, and the first has gone";
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

// Runs another thread's action as soon as the driver has a segment back.
struct meanwhile final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  weir::driver::status release_segment(int device, weir::driver::address at) override {
    auto const s = fault_injector::release_segment(device, at);
    if (s.ok() && then)
      std::exchange(then, nullptr)();
    return s;
  }
  std::function<void()> then;
};

// The segment is reused before the call that returned it has returned.
TEST(allocator_segments, one_returns_to_another_stream_early) {
  for (bool const same_stream : {true, false}) {
    meanwhile* machine = nullptr;
    memory_bench bench({.devices = 1,
                        .memory = 4 << 20,
                        .schedule = simulated::scheduling::seeded,
                        .seed = 1,
                        .virtual_memory = false},
                       {}, [&](auto inner) {
                         auto made = std::make_unique<meanwhile>(std::move(inner));
                         machine = made.get();
                         return made;
                       });
    memory::allocator& d = bench.on(0);
    clock::stream_clock &a = bench.stream(0), &b = bench.stream(0);
    void* const first = d.allocate(a, 1 << 20, 0, at);
    void* second = nullptr;
    d.deallocate(first, nullptr, at);
    machine->then = [&] { second = d.allocate(same_stream ? a : b, 1 << 20, 0, at); };
    d.empty_cache();
    ASSERT_EQ(second, first) << "not the same addresses: nothing is shown";
    ASSERT_TRUE(d.find(second)) << "their owner is unknown";
    EXPECT_EQ(d.validate(), std::vector<std::string>{});
    d.deallocate(second, nullptr, at);
    d.empty_cache();
    EXPECT_EQ(d.statistics().reserved_bytes.all.current, 0);
    EXPECT_EQ(d.validate(), std::vector<std::string>{});
  }
}

// A stream of another device still uses the pages.
TEST(allocator_end, pages_in_use_elsewhere_are_unmapped_after_it) {
  memory_bench bench({.devices = 2, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  memory::oom_callbacks none;
  auto d = std::make_unique<memory::device_allocator>(bench.core, 0, none);
  clock::stream_clock& home = bench.stream(0);
  clock::stream_clock& far = bench.stream(1);
  void* const p = d->allocate(home, 300'000, 0, at);
  ASSERT_TRUE(d->grant(p, 1).ok());
  d->record_use(p, far, at);
  bool ran = false;
  driver::touch const reads[] = {{reinterpret_cast<driver::address>(p), 300'000, false}};
  ASSERT_TRUE(bench.machine()
                  .enqueue(1, far.handle(), reads, {[](void* ran) { *static_cast<bool*>(ran) = true; }, nullptr, &ran})
                  .ok());
  d->deallocate(p, nullptr, at);
  d.reset();
  EXPECT_TRUE(ran) << "the allocator ended before the work that uses its pages";
  ASSERT_TRUE(bench.control->run());
  for (std::string const& f : bench.control->findings())
    EXPECT_EQ(f.find("stray"), std::string::npos) << f;
}

TEST(allocator_end, pages_stay_when_another_device_cannot_wait) {
  memory_bench bench({.devices = 2, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  memory::oom_callbacks none;
  auto d = std::make_unique<memory::device_allocator>(bench.core, 0, none);
  clock::stream_clock& home = bench.stream(0);
  clock::stream_clock& far = bench.stream(1);
  void* const p = d->allocate(home, 300'000, 0, at);
  ASSERT_TRUE(d->grant(p, 1).ok());
  d->record_use(p, far, at);
  driver::touch const reads[] = {{reinterpret_cast<driver::address>(p), 300'000, false}};
  ASSERT_TRUE(bench.machine().enqueue(1, far.handle(), reads, {[](void*) {}, nullptr, nullptr}).ok());
  d->deallocate(p, nullptr, at);
  ASSERT_NE(bench.control->fail_call("synchronize_device", 2, driver::code::failed), 0u) << "the first is of gpu:0";
  d.reset();
  ASSERT_TRUE(bench.control->run());
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
}

// Regression: the refused wait was ignored, and pages were unmapped under queued work.
TEST(allocator_end, pages_stay_when_the_device_cannot_wait) {
  memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  memory::oom_callbacks none;
  auto d = std::make_unique<memory::device_allocator>(bench.core, 0, none);
  clock::stream_clock& home = bench.stream(0);
  void* const p = d->allocate(home, 300'000, 0, at);
  driver::touch const writes[] = {{reinterpret_cast<driver::address>(p), 300'000, true}};
  ASSERT_TRUE(bench.machine().enqueue(0, home.handle(), writes, {[](void*) {}, nullptr, nullptr}).ok());
  d->deallocate(p, nullptr, at);
  ASSERT_NE(bench.control->fail_call("synchronize_device", 1, driver::code::failed), 0u);
  d.reset();
  ASSERT_TRUE(bench.control->run());
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
}

TEST(oom_callbacks, removal_waits_for_calls_of_other_threads) {
  struct slow {
    std::atomic<bool> entered{false}, left{false};
  } state;
  memory::oom_callbacks all;
  auto const id = all.add(
      [](void* s, memory_report const&) {
        auto& self = *static_cast<slow*>(s);
        self.entered = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        self.left = true;
        return false;
      },
      &state, 0);
  std::thread out_of_room([&] { (void)all.call({}); });
  while (!state.entered)
    std::this_thread::yield();
  all.remove(id);
  EXPECT_TRUE(state.left) << "what the callback uses may be gone now";
  out_of_room.join();
  state.entered = false;
  (void)all.call({});
  EXPECT_FALSE(state.entered);
}

TEST(oom_callbacks, two_that_remove_themselves_do_not_deadlock) {
  struct shared {
    memory::oom_callbacks all;
    std::atomic<int> inside{0};
  } state;
  struct one {
    shared& of;
    std::uint64_t id = 0;
  } first{state}, second{state};
  auto const meet_and_go = [](void* s, memory_report const&) {
    auto& self = *static_cast<one*>(s);
    ++self.of.inside;
    while (self.of.inside < 2)
      std::this_thread::yield();
    self.of.all.remove(self.id);
    return true;
  };
  first.id = state.all.add(meet_and_go, &first, 0);
  std::thread other([&] { (void)state.all.call({}); });
  while (state.inside < 1)
    std::this_thread::yield();
  second.id = state.all.add(meet_and_go, &second, -1);
  EXPECT_TRUE(state.all.call({}));  // meets the other thread in the second callback
  other.join();
}

TEST(oom_callbacks, one_may_remove_itself_or_throw) {
  struct once {
    memory::oom_callbacks all;
    std::uint64_t id = 0;
    int calls = 0;
  } state;
  auto const itself = [](void* s, memory_report const&) {
    auto& self = *static_cast<once*>(s);
    ++self.calls;
    self.all.remove(self.id);
    return true;
  };
  state.id = state.all.add(itself, &state, 0);
  EXPECT_TRUE(state.all.call({}));
  EXPECT_FALSE(state.all.call({}));
  EXPECT_EQ(state.calls, 1);
  auto const throws =
      state.all.add([](void*, memory_report const&) -> bool { throw std::runtime_error("no"); }, nullptr, 0);
  EXPECT_THROW((void)state.all.call({}), std::runtime_error);
  state.all.remove(throws);  // does not wait for a thread that has ended
}

}  // namespace
}  // namespace weir
