// Counters that are read while threads allocate lie between the true values before and after the read. At
// rest they equal a recount. A peak is at least what was live at once, and exceeds it by no more than
// device_counters.h states. Seeds as tests/support/seeds.h says.
// Threads: several at once, on the machine's own clock.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "runtime/observe/device_counters.h"
#include "tests/support/seeds.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

constexpr int threads = 4;

// Totals of the program. An operation has begun before its call and is done after its return.
struct truth {
  std::atomic<std::int64_t> begun_blocks{0}, begun_bytes{0}, done_blocks{0}, done_bytes{0};
};
struct seen {
  std::int64_t taken_begun, taken_done, given_begun, given_done;  // blocks
  std::int64_t taken_bytes_begun, taken_bytes_done, given_bytes_begun, given_bytes_done;
};

struct sums : testing::Test {
  truth taken, given;
  std::atomic<std::int64_t> now_at_most{0}, now_at_least{0}, peak_at_most{0}, peak_at_least{0};  // bytes asked for

  seen look() const {
    return {taken.begun_blocks, taken.done_blocks, given.begun_blocks, given.done_blocks,
            taken.begun_bytes,  taken.done_bytes,  given.begun_bytes,  given.done_bytes};
  }
  static void raise(std::atomic<std::int64_t>& peak, std::int64_t to) {
    for (std::int64_t was = peak; was < to && !peak.compare_exchange_weak(was, to);) {}
  }
  void* take(stream_ref on, std::int64_t bytes) {
    taken.begun_blocks += 1, taken.begun_bytes += bytes;
    raise(peak_at_most, now_at_most += bytes);
    void* const p = allocate(on, static_cast<size_t>(bytes));
    raise(peak_at_least, now_at_least += bytes);
    taken.done_bytes += bytes, taken.done_blocks += 1;
    return p;
  }
  void give(void* p, std::int64_t bytes) {
    given.begun_blocks += 1, given.begun_bytes += bytes;
    now_at_least -= bytes;
    deallocate(p);
    now_at_most -= bytes;
    given.done_bytes += bytes, given.done_blocks += 1;
  }

  struct block {
    void* p;
    std::int64_t bytes;
  };
  std::array<std::vector<block>, threads> live;

  // Blocks of this thread, of its own stream and of a stream that two threads share.
  void program(std::uint64_t seed, int mine, stream_ref own, stream_ref shared) {
    std::mt19937_64 random(seed);
    auto& blocks = live[static_cast<size_t>(mine)];
    for (int i = 0; i < 1500; ++i) {
      bool const rising = i % 300 < 180;
      if (blocks.empty() || random() % 100 < (rising ? 65u : 30u)) {
        auto const bytes = static_cast<std::int64_t>(random() % 8 ? 1 + random() % 30'000 : 1 + random() % 3'000'000);
        blocks.push_back({take(random() % 3 ? own : shared, bytes), bytes});
      } else {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        give(blocks.back().p, blocks.back().bytes);
        blocks.pop_back();
      }
    }
  }

  static void between(std::int64_t low, std::int64_t is, std::int64_t high, char const* what) {
    EXPECT_LE(low, is) << what;
    EXPECT_LE(is, high) << what;
  }
  void ask() const {
    seen const a = look();
    memory_statistics const n = memory_stats(0);
    seen const b = look();
    between(a.taken_done, n.allocation.all.allocated, b.taken_begun, "blocks taken");
    between(a.given_done, n.allocation.all.freed, b.given_begun, "blocks given back");
    between(a.taken_done - b.given_begun, n.allocation.all.current, b.taken_begun - a.given_done, "live blocks");
    // A cache counts the rounded size of a small block, and the rounding of all blocks separately. The bytes
    // may therefore be wrong by the rounding of blocks allocated or freed meanwhile, at most 4 KiB each.
    std::int64_t const loose = 4096 * (b.taken_begun - a.taken_done + b.given_begun - a.given_done);
    between(a.taken_bytes_done - loose, n.requested_bytes.all.allocated, b.taken_bytes_begun + loose, "bytes taken");
    between(a.given_bytes_done - loose, n.requested_bytes.all.freed, b.given_bytes_begun + loose, "bytes given back");
    between(a.taken_bytes_done - b.given_bytes_begun - loose, n.requested_bytes.all.current,
            b.taken_bytes_begun - a.given_bytes_done + loose, "bytes live");
    EXPECT_EQ(n.reserved_bytes.all.current,
              n.allocated_bytes.all.current + n.pending_bytes.all.current + n.cached_bytes.all.current);
    EXPECT_EQ(n.allocation.all.current, n.allocation.small.current + n.allocation.large.current);
    EXPECT_EQ(n.allocation.all.current, n.allocation.all.allocated - n.allocation.all.freed);
    EXPECT_GE(n.requested_bytes.all.peak, n.requested_bytes.all.current);
  }
  void recount() const {
    std::int64_t blocks = 0, bytes = 0;
    for (auto const& of : live) {
      for (block const& b : of)
        ++blocks, bytes += b.bytes;
    }
    memory_statistics const n = memory_stats(0);
    EXPECT_EQ(n.allocation.all.current, blocks);
    EXPECT_EQ(n.requested_bytes.all.current, bytes);
    EXPECT_EQ(n.allocation.all.allocated, taken.done_blocks);
    EXPECT_EQ(n.allocation.all.freed, given.done_blocks);
    EXPECT_EQ(n.requested_bytes.all.allocated, taken.done_bytes);
    EXPECT_EQ(n.requested_bytes.all.freed, given.done_bytes);
    // Each stream's counters, and what thread caches hold: at most a run of each of a few sizes.
    std::int64_t const peak = n.requested_bytes.all.peak, streams = threads + 1,
                       caches = std::int64_t{threads} * streams * (1 << 20);
    EXPECT_GE(peak, peak_at_least);
    EXPECT_LE(peak, peak_at_most + streams * observe::heap_counters::slack_bytes + peak_at_most / 4 + caches);
  }
};

TEST_F(sums, are_between_true_values_and_exact_at_rest) {
  for (std::uint64_t const seed : tests::seeds("sums", 100, 0, 25)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    runtime machine(simulated{.devices = 1, .memory = 8_GiB});
    runtime_guard const in(machine);
    for (auto* of : {&taken, &given})
      of->begun_blocks = of->begun_bytes = of->done_blocks = of->done_bytes = 0;
    now_at_most = now_at_least = peak_at_most = peak_at_least = 0;
    std::array<stream, threads> own;
    stream shared;
    std::atomic<int> running{threads};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        runtime_guard const mine(machine);
        program(seed * 31 + static_cast<std::uint64_t>(t), t, own[static_cast<size_t>(t)], shared);
        --running;
      });
    }
    int asked = 0;
    for (; running > 0 || asked == 0; ++asked)
      ask();
    for (std::thread& t : all)
      t.join();
    ask();
    recount();
    for (auto& of : live) {
      for (block const& b : of)
        give(b.p, b.bytes);
      of.clear();
    }
    recount();
    if (HasFailure())
      return;
  }
}

}  // namespace
}  // namespace weir
