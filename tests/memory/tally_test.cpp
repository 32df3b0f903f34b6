// Peaks are exact although they are looked at only where a level may have passed one.
// Threads: one.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/observe/counters.h"

namespace weir::observe {
namespace {

struct model {
  std::int64_t now = 0, peak = 0;
  void add(std::int64_t by) { peak = std::max(peak, now += by); }
};
struct block { std::size_t rounded, requested; };

// One pool after the other and both: allocation, active, their bytes, what was asked for; as the tally is told.
TEST(tally, peaks_are_the_highest_levels_there_ever_were) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::minstd_rand random(seed);
    tally t;
    counters sum;
    model levels[5][3];
    std::vector<block> live[2], held[2];
    auto const move = [&](std::size_t p, std::int64_t blocks, std::int64_t active, std::int64_t bytes, std::int64_t active_bytes, std::int64_t requested) {
      std::int64_t const by[] = {blocks, active, bytes, active_bytes, requested};
      for (std::size_t k = 0; k < 5; ++k) levels[k][p].add(by[k]), levels[k][2].add(by[k]);
    };
    t.mapped(1 << 30);
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
        t.held(pool, b.rounded, b.requested);
        held[p].push_back(b);
        move(p, -1, 0, -as(b.rounded), 0, -as(b.requested));
      } else if (what < 15 && !held[p].empty()) {
        block const b = pick(held[p]);
        t.held_no_more(pool, b.rounded);
        move(p, 0, -1, 0, -as(b.rounded), 0);
      } else if (random() % 40 == 0) {
        t.reset_peak();
        for (auto& level : levels) {
          for (model& m : level) m.peak = m.now;
        }
      }
    }
    tally const* const one[] = {&t};
    memory_statistics const n = sum.read(one, {});
    stat_by_size const* const found[] = {&n.allocation, &n.active, &n.allocated_bytes, &n.active_bytes, &n.requested_bytes};
    for (std::size_t k = 0; k < 5; ++k) {
      stat const* const of[] = {&found[k]->small, &found[k]->large, &found[k]->all};
      for (std::size_t p = 0; p < 3; ++p) {
        ASSERT_EQ(of[p]->current, levels[k][p].now) << "level " << k << " of pool " << p << ", seed " << seed;
        ASSERT_EQ(of[p]->peak, levels[k][p].peak) << "level " << k << " of pool " << p << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace weir::observe
