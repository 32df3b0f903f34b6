// Peaks are exact, although they are read only where a level may have passed one.
// Threads: one.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

#include "runtime/observe/device_counters.h"

namespace weir::observe {
namespace {

struct model {
  std::int64_t now = 0, peak = 0;
  void add(std::int64_t by) { peak = std::max(peak, now += by); }
};
struct block {
  std::size_t rounded, requested;
};

// Small pool, large pool and both: allocation, active, their bytes, requested bytes; in the order of
// heap_counters.
TEST(heap_counters, peaks_are_the_highest_levels_there_ever_were) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::minstd_rand random(seed);
    heap_counters t;
    device_counters sum;
    model levels[5][3];
    std::vector<block> live[2], held[2];
    auto const move = [&](std::size_t p, std::int64_t blocks, std::int64_t active, std::int64_t bytes,
                          std::int64_t active_bytes, std::int64_t requested) {
      std::int64_t const by[] = {blocks, active, bytes, active_bytes, requested};
      for (std::size_t k = 0; k < 5; ++k)
        levels[k][p].add(by[k]), levels[k][2].add(by[k]);
    };
    t.mapped(1 << 30);
    ASSERT_TRUE(sum.charge(1 << 30));
    sum.gave(1 << 30, 0), sum.run_cut(1 << 29);
    for (int i = 0; i < 400; ++i) {
      std::size_t const p = random() % 2;
      auto const pool = static_cast<size_pool>(p);
      auto const pick = [&](std::vector<block>& from) {
        std::swap(from[random() % from.size()], from.back());
        block const b = from.back();
        from.pop_back();
        return b;
      };
      auto const as = [](std::size_t n) { return static_cast<std::int64_t>(n); };
      unsigned const what = random() % 16;
      if (what < 7) {
        std::size_t const rounded = 16 * (1 + random() % 100);
        block const b{rounded, rounded - random() % 16};
        live[p].push_back(b);
        t.allocated(pool, b.rounded, b.requested);
        move(p, 1, 1, as(b.rounded), as(b.rounded), as(b.requested));
      } else if (what < 11 && !live[p].empty()) {
        block const b = pick(live[p]);
        t.freed(pool, b.rounded, b.requested);
        move(p, -1, -1, -as(b.rounded), -as(b.rounded), -as(b.requested));
      } else if (what < 13 && !live[p].empty()) {
        block const b = pick(live[p]);
        t.freed_pending(pool, b.rounded, b.requested);
        held[p].push_back(b);
        move(p, -1, 0, -as(b.rounded), 0, -as(b.requested));
      } else if (what < 15 && !held[p].empty()) {
        block const b = pick(held[p]);
        t.pending_no_more(pool, b.rounded);
        move(p, 0, -1, 0, -as(b.rounded), 0);
      } else if (random() % 40 == 0) {
        t.reset_peak();
        for (auto& level : levels) {
          for (model& m : level)
            m.peak = m.now;
        }
      }
    }
    heap_counters const* const one[] = {&t};
    memory_statistics const n = sum.read(one, {});
    statistic_by_size const* const found[] = {&n.allocation, &n.active, &n.allocated_bytes, &n.active_bytes,
                                              &n.requested_bytes};
    for (std::size_t k = 0; k < 5; ++k) {
      statistic const* const of[] = {&found[k]->small, &found[k]->large, &found[k]->all};
      for (std::size_t p = 0; p < 3; ++p) {
        ASSERT_EQ(of[p]->current, levels[k][p].now) << "level " << k << " of pool " << p << ", seed " << seed;
        ASSERT_EQ(of[p]->peak, levels[k][p].peak) << "level " << k << " of pool " << p << ", seed " << seed;
      }
    }
  }
}

// Each stream in turn allocates so much and frees it. The peak is what one stream reported, plus at most what
// a hundred may rise without a report.
TEST(heap_counters, a_hundred_err_little_and_never_above_reserved) {
  constexpr std::size_t block = 1 << 20, blocks = 64;
  for (bool const scarce : {false, true}) {
    device_counters sum;
    std::deque<heap_counters> all;
    std::vector<heap_counters const*> refs;
    std::size_t const reserved = scarce ? blocks * block : std::size_t{1} << 40;
    ASSERT_TRUE(sum.charge(reserved));
    sum.gave(reserved, 0);
    for (int i = 0; i < 100; ++i) {
      refs.push_back(&all.emplace_back());
      if ((all.size() & (all.size() - 1)) == 0) {
        for (heap_counters& t : all)
          t.share(sum.shared());
      } else {
        all.back().share(sum.shared());
      }
    }
    for (int round = 0; round < 3; ++round) {
      for (heap_counters& t : all) {
        for (std::size_t i = 0; i < blocks; ++i)
          t.allocated(size_pool::large, block, block);
        for (std::size_t i = 0; i < blocks; ++i)
          t.freed(size_pool::large, block, block);
      }
    }
    memory_statistics const n = sum.read(refs, {});
    EXPECT_GE(n.allocated_bytes.all.peak, static_cast<std::int64_t>(blocks * block));
    EXPECT_LE(n.allocated_bytes.all.peak, static_cast<std::int64_t>(scarce ? reserved : blocks * block * 2));
    EXPECT_GE(n.allocation.all.peak, static_cast<std::int64_t>(blocks));
    EXPECT_LE(n.allocation.all.peak, static_cast<std::int64_t>(blocks + 8 * heap_counters::slack_blocks));
  }
}

// A cache that stays within its grant does not call the heap counters. Beside large blocks the grant is half
// as large.
TEST(heap_counters, a_cache_may_reach_its_peak_without_a_report) {
  heap_counters t;
  t.mapped(1 << 20), t.run_cut(1 << 19);
  constexpr change taken{8, 4096, 4096}, given{-8, -4096, -4096};
  (void)t.left_after(taken, {});
  grant const alone = t.left_after(given, {});
  EXPECT_EQ(alone.up.blocks, 8);
  EXPECT_EQ(alone.up.bytes, 4096);
  EXPECT_EQ(alone.up.requested, 4096);
  t.absorb({}, {});
  t.allocated(size_pool::large, 65536, 65536);
  t.freed(size_pool::large, 65536, 65536);
  grant const beside = t.left_after({}, {});
  EXPECT_EQ(beside.up.bytes, 4096) << "all may rise by 64 KiB more";
  EXPECT_TRUE(t.sets_aside());
  t.allocated(size_pool::large, 32768, 32768);
  EXPECT_FALSE(t.is_used_up());
  t.allocated(size_pool::large, 32768, 32768);
  EXPECT_TRUE(t.is_used_up()) << "with what the cache may take it would pass the peak";
}

TEST(heap_counters, refused_memory_was_never_reserved) {
  device_counters sum;
  ASSERT_TRUE(sum.charge(5 << 20));
  sum.gave(5 << 20, 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sum.charge(90 << 20));
    EXPECT_EQ(sum.reserved(), std::size_t{95} << 20) << "others may not have it meanwhile";
    sum.gave(0, 90 << 20);
  }
  memory_statistics const n = sum.read({}, {});
  EXPECT_EQ(n.reserved_bytes.all.peak, 5 << 20);
  EXPECT_EQ(n.reserved_bytes.all.allocated, 5 << 20);
  EXPECT_EQ(n.reserved_bytes.all.freed, 0);
}

}  // namespace
}  // namespace weir::observe
