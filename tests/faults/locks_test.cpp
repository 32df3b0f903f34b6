// No driver call is made under a heap's lock, in any scenario, whatever is refused.
// Threads: one, and one that takes the locks meanwhile.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "runtime/core/parts.h"
#include "simulator/machine/machine.h"
#include "tests/faults/heap.h"
#include "tests/faults/trial.h"
#include "tests/support/free_locks.h"
#include "tests/support/memory_bench.h"

namespace weir::faults {
namespace {

using names = std::set<std::string>;

// The machine uses the heap too: only weir's allocations fail.
struct eyes final : driver::fault_injector::watcher {
  explicit eyes(runtime::impl& of) : locks(of) {}
  void comes(call c) noexcept override {
    heap::paused const quiet;
    locks.comes(c);
  }
  void enters(call) noexcept override { heap::pause(); }
  void leaves(call) noexcept override { heap::go_on(); }
  tests::free_locks locks;
};

struct driver_calls : ::testing::TestWithParam<scenario> {};

TEST_P(driver_calls, hold_no_lock_of_a_heap) {
  scenario const& s = GetParam();
  if (undisturbed_only())
    GTEST_SKIP() << "a checker reports what is stuck behind a refused call";
  simulated like = s.machine;
  like.seed = 1;
  std::uint64_t calls = 0;
  for (int trial = 0; trial < 40; ++trial) {
    runtime own(like, s.with);
    eyes watching(own.get());
    auto& machine = *driver::fault_injector_of(own.get().machine());
    {
      runtime_guard const in(own);
      machine.watch(&watching);
      auto const k = static_cast<std::uint64_t>(trial) * 7919;
      if (trial % 2)
        machine.refuse({.of = call::any, .k = 1 + k % calls, .with = code::failed, .more = k % 3});
      else if (trial)
        heap::fail(1 + k % calls, k % 3);
      try {
        (void)s.run();
      } catch (error const&) {
      } catch (std::bad_alloc const&) {}
      heap::stop();
      machine.forget_orders();
      machine.watch(nullptr);
    }
    if (trial == 0)
      calls = watching.locks.calls();
    ASSERT_EQ(watching.locks.with_a_lock(), names{}) << "trial " << trial;
  }
  EXPECT_GT(calls, 0u);
}

std::vector<scenario> of_one_thread() {
  std::vector<scenario> all;
  for (auto const& s : scenarios()) {
    // a captured buffer that ends without memory, and a simulated_stream, do not: heap_test.cpp
    bool const ends = std::string_view(s.name) != "captures" && std::string_view(s.name) != "streams_by_handle";
    if (!s.threads && !s.afterwards && ends)
      all.push_back(s);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(of, driver_calls, ::testing::ValuesIn(of_one_thread()),
                         [](auto const& info) { return info.param.name; });

// Regression: a segment for which the host had no memory went back to the driver under the lock.
TEST(driver_calls, hold_no_lock_when_a_segment_goes_back) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker allocates inside calls of the driver";
  simulated const like{
      .devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .virtual_memory = false};
  source_location const at = source_location::current();
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    tests::memory_bench bench(like);
    clock::stream_clock& s = bench.stream(0);
    memory::allocator& d = bench.on(0);
    d.deallocate(d.allocate(s, 1000, 0, at), nullptr, at);
    eyes watching(bench.core);
    auto& machine = bench.control->refusing();
    machine.watch(&watching);
    heap::fail(k, 0);
    void* p = nullptr;
    try {
      p = d.allocate(s, 3 << 20, 0, at);
    } catch (std::bad_alloc const&) {}
    refused = heap::stop();
    if (!p)
      p = d.allocate(s, 3 << 20, 0, at);
    machine.watch(nullptr);
    EXPECT_EQ(watching.locks.with_a_lock(), names{}) << "allocation " << k;
    EXPECT_EQ(d.validate(), std::vector<std::string>{}) << "allocation " << k;
    d.deallocate(p, nullptr, at);
    d.empty_cache();
    EXPECT_EQ(d.statistics().reserved_bytes.all.current, 0) << "allocation " << k;
  }
}

#ifndef NDEBUG
// A planted defect cannot show it: it rebuilds one source, and the doors are counted in all.
TEST(driver_calls, end_the_process_behind_a_door) {
  tests::memory_bench bench(simulated{.devices = 1, .memory = 64_MiB});
  clock::stream_clock& s = bench.stream(0);
  source_location const at = source_location::current();
  auto& d = static_cast<memory::device_allocator&>(bench.on(0));
  d.deallocate(d.allocate(s, 1000, 0, at), nullptr, at);
  memory::stream_heap& heap = d.heaps().index[0];
  EXPECT_DEATH(
      {
        memory::session const in(heap);
        (void)s.query();
      },
      "a driver call is made under a heap's lock");
  EXPECT_DEATH(
      {
        memory::session const in(heap);
        memory::quiet_session const again(heap);
      },
      "a thread holds two doors to heaps");
}
#endif

}  // namespace
}  // namespace weir::faults
