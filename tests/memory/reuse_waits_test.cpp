// Reuse behind device waits: when a stream waits for memory, for how much of it, and when it does not.
// Threads: one.
#include <gtest/gtest.h>

#include "simulator/checker/race_checker.h"
#include "tests/memory/counted_calls.h"
#include "tests/memory/reuse_machine.h"

namespace weir {
namespace {

using tests::counted_calls;
using tests::memory_bench;
using machine = tests::reuse_machine;
using waits = options::wait_policy;

TEST(reuse_waits, a_stream_waits_only_as_device_waits_allows) {
  for (waits const policy : {waits::never, waits::when_short, waits::before_growth}) {
    machine m({.device_waits = policy}, 4 << 20);
    m.give(m.take(m.a, 3 << 20));
    m.busy(m.a);
    counted_calls calls(*m.bench.control);
    ASSERT_NE(m.take(m.b, 3 << 20), nullptr);  // never: the host waits
    EXPECT_EQ(m.stats().waits_inserted, policy == waits::never ? 0u : 1u);
    EXPECT_EQ(calls.of({driver::call::wait}), policy == waits::never ? 0u : 1u);
    EXPECT_EQ(calls.host_waits() > 0, policy == waits::never);
    m.sound();
  }
}

TEST(reuse_waits, a_host_ahead_gets_its_oldest_memory) {
  constexpr std::size_t bytes = 2 << 20;
  for (waits const policy : {waits::when_short, waits::before_growth}) {
    machine m({.device_waits = policy, .fence_interval = bytes});
    m.batches(m.a, m.b, 100, bytes);
    if (policy == waits::when_short) {
      EXPECT_EQ(m.most_reserved(), 100 * bytes) << "what it is without";
      EXPECT_EQ(m.stats().waits_inserted, 0u);
    } else {
      EXPECT_LE(m.most_reserved(), 5 * bytes);
      EXPECT_GE(m.stats().waits_inserted, 90u);
      EXPECT_EQ(m.stats().late_waits, 0u) << "each wait is for a fence behind its block";
    }
    m.sound();
  }
}

// The home stream stays three blocks ahead. It waits for the oldest of four, and not for the blocks behind
// it.
TEST(reuse_waits, a_wait_leaves_the_newest_blocks_to_their_users) {
  machine m;
  m.batches(m.a, m.b, 5, 16 << 20);
  EXPECT_EQ(m.stats().waits_inserted, 1u);
  int done = 0;
  ASSERT_TRUE(
      m.bench.machine().enqueue(0, m.a.handle(), {}, {[](void* n) { ++*static_cast<int*>(n); }, nullptr, &done}).ok());
  auto const steps_of_b = [&](int operations) {
    for (int i = 0; i < operations; ++i) {
      while (m.bench.control->step(0, m.a.handle())) {}
      m.bench.control->step(0, m.b.handle());
    }
    while (m.bench.control->step(0, m.a.handle())) {}
  };
  steps_of_b(3);  // the first batch: a wait, its work, its fence
  EXPECT_EQ(done, 1) << "the fifth batch stood behind more than the first";
  ASSERT_TRUE(m.bench.control->run());
  m.sound();
}

TEST(reuse_waits, no_wait_instead_of_growth_beside_collectives) {
  for (bool const home : {true, false}) {
    machine m({.fence_interval = 2 << 20});
    (home ? m.a : m.b).set_carries_collectives(true);
    m.batches(m.a, m.b, 20, 2 << 20);
    EXPECT_EQ(m.stats().waits_inserted, 0u);
    m.sound();
  }
}

TEST(reuse_waits, batches_of_small_blocks_take_a_few_fences_worth) {
  machine m;
  m.batches(m.a, m.b, 2000, 1 << 20);
  EXPECT_LE(m.most_reserved(), std::size_t{40} << 20);
  EXPECT_LE(m.stats().late_waits * 8, m.stats().waits_inserted) << "a poll's fence may be the first that covers";
  m.sound();
}

// Slots of slabs, and blocks of which one fence covers hundreds.
TEST(reuse_waits, small_blocks_of_a_host_ahead_take_few_fences) {
  constexpr std::size_t fence = 2 << 20, all = 16 * fence;
  for (std::size_t bytes : {3000, 32'000, 9 << 10, 40 << 10}) {
    for (waits const policy : {waits::when_short, waits::before_growth}) {
      machine m({.device_waits = policy, .fence_interval = bytes > memory::size_classes::largest ? 4 * fence : fence},
                std::size_t{1} << 30);
      m.batches(m.a, m.b, static_cast<int>(all / bytes), bytes);
      if (policy == waits::when_short) {
        EXPECT_GE(m.most_reserved(), all * 15 / 16) << bytes << ": what it is without";
        EXPECT_EQ(m.stats().waits_inserted, 0u);
      } else {
        EXPECT_LE(m.most_reserved(), bytes > memory::size_classes::largest ? 13 * fence : 5 * fence) << bytes;
        EXPECT_GE(m.stats().waits_inserted, 4u) << bytes;
        if (bytes <= memory::size_classes::largest) {
          EXPECT_LE(m.stats().late_waits, 2u)
              << bytes << ", of " << m.stats().waits_inserted << ": a poll's fence may be the first that covers";
        }
      }
      m.sound();
    }
  }
}

TEST(reuse_waits, slots_that_return_together_are_waited_for_as_one) {
  constexpr std::size_t fence = 2 << 20, all = 16 * fence;
  for (std::size_t bytes : {2'000, 9'000, 32'000}) {
    machine m({.fence_interval = fence}, std::size_t{1} << 30);
    m.named_batches(m.a, m.b, static_cast<int>(all / bytes), bytes);
    EXPECT_LE(m.most_reserved(), 3 * fence) << bytes;
    EXPECT_GE(m.stats().waits_inserted, 2u) << bytes;
    m.sound();
  }
}

TEST(reuse_waits, no_wait_for_slots_beside_collectives_or_for_few) {
  constexpr std::size_t fence = 2 << 20;
  for (int const who : {0, 1, 2}) {
    machine m({.fence_interval = fence}, std::size_t{1} << 30);
    if (who != 2)
      (who ? m.a : m.b).set_carries_collectives(true);
    m.batches(m.a, m.b, static_cast<int>((who == 2 ? 2 : 8) * fence / 32'768), 32'768);
    EXPECT_EQ(m.stats().waits_inserted, 0u);
    m.sound();
  }
}

TEST(reuse_waits, a_piece_of_the_exact_size_is_waited_for) {
  machine m({}, 8 << 20);
  void* const kept = m.take(m.a, 4 << 20);
  void* const p = m.take(m.a, 4 << 20);
  m.busy(m.a);
  m.give(p);
  counted_calls calls(*m.bench.control);
  void* const again = m.take(m.b, 4 << 20);
  EXPECT_EQ(again, p);
  EXPECT_EQ(calls.host_waits(), 0u);
  EXPECT_EQ(calls.of({driver::call::unmap}), 0u);
  m.give(again);
  m.give(kept);
}

TEST(reuse_waits, a_wait_for_own_blocks_is_reported_to_a_checker) {
  driver::check::test_control* checker = nullptr;
  auto const checked = [&](std::unique_ptr<driver::driver> m) {
    auto both = driver::check::wrap(std::move(m));
    checker = both.control;
    return std::move(both.machine);
  };
  memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1}, {},
                     checked);
  memory::allocator& d = bench.on(0);
  clock::stream_clock &a = bench.stream(0), &b = bench.stream(0);
  void* const p = d.allocate(a, 3 << 20, 0, at);
  d.record_use(p, b, at);
  ASSERT_TRUE(bench.machine().enqueue(0, b.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  d.deallocate(p, nullptr, at);
  EXPECT_EQ(d.allocate(a, 3 << 20, 0, at), p);
  EXPECT_EQ(d.statistics().waits_inserted, 1u);
  EXPECT_EQ(checker->counted().waits, 1u);
  d.deallocate(p, nullptr, at);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

// A search visits at most 64 free blocks of a heap. All of those here are known to be complete.
TEST(reuse_waits, short_memory_waits_beyond_the_pieces_looked_at) {
  constexpr std::size_t page = 64 << 10, small = 40 << 10, wanted = 100 << 10, n = 70;
  constexpr std::size_t all = memory::round_up((2 * n + 1) * small + wanted, page);
  machine m({.device_limit = all, .device_waits = waits::never}, 64 << 20);
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < n; ++i)
    blocks.push_back(m.take(m.a, small)), (void)m.take(m.a, small);
  void* const last = m.take(m.a, wanted);
  (void)m.take(m.a, small);
  for (void* const p : blocks)
    m.give(p);
  ASSERT_TRUE(m.bench.clocks().synchronize(m.a.now()).ok());
  m.busy(m.a);
  m.give(last);
  EXPECT_EQ(m.take(m.b, wanted), last);
  m.sound();
}

}  // namespace
}  // namespace weir
