// Which block covers an address: the tree of bits, the table of granules, and the two with slabs' cells.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "runtime/memory/blocks/block_table.h"
#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/blocks/slab.h"

namespace weir::memory {
namespace {

TEST(bit_tree, finds_the_largest_member_up_to_a_number) {
  std::mt19937_64 random(7);
  bit_tree t(300'000);
  std::map<std::size_t, bool> model;
  for (int i = 0; i < 4000; ++i) {
    std::size_t const at = random() % 3 ? random() % 300'000 : random() % 500;
    if (random() % 3) {
      t.insert(at);
      model[at] = true;
    } else {
      t.erase(at);
      model.erase(at);
    }
    std::size_t const ask = random() % 300'000;
    auto const after = model.upper_bound(ask);
    ASSERT_EQ(t.last_up_to(ask), after == model.begin() ? bit_tree::none : std::prev(after)->first);
  }
}

// Against a plain table of one word for each granule: blocks that start anywhere.
TEST(granule_table, knows_the_last_entry_of_each_granule) {
  constexpr std::size_t granules = 64 * 12;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::minstd_rand random(seed);
    address const base = granule * (1 + random() % 1000);
    granule_table table(base, granules);
    std::vector<heap_block*> model(granules);
    std::deque<heap_block> blocks;
    unsigned const crowded = 1 + random() % 40;
    for (int step = 0; step < 600; ++step) {
      std::size_t const i = random() % granules;
      if (model[i]) {
        table.clear(i), model[i] = nullptr;
        continue;
      }
      if (random() % 40 > crowded)
        continue;
      heap_block& p = blocks.emplace_back();
      p.at = base + i * granule + random() % 64 * bins::unit;
      table.set(i, model[i] = &p);
    }
    for (std::size_t i = 0; i < granules; ++i) {
      ASSERT_EQ(table.at(i), model[i]) << "granule " << i << ", seed " << seed;
      if (model[i]) {
        ASSERT_EQ(table.near(i), model[i]) << "granule " << i << ", seed " << seed;
      }
    }
  }
}

// Against a map by start: blocks of which no two start in one granule, and runs of slabs that begin at any cell.
TEST(block_table, finds_what_covers_an_address) {
  constexpr std::size_t bytes = 256 * granule;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::minstd_rand random(seed);
    address const base = granule * (1 + random() % 1000);
    block_table table(base, bytes);
    std::deque<heap_block> blocks;
    std::deque<slab> slabs;
    std::map<address, heap_block*> model;
    auto const covering = [&](address a) -> heap_block* {
      auto const after = model.upper_bound(a);
      if (after == model.begin())
        return nullptr;
      heap_block* const p = std::prev(after)->second;
      return a < p->end() ? p : nullptr;
    };
    auto const enter = [&](address at, std::size_t size, bool run) {
      heap_block& p = blocks.emplace_back();
      p.at = at, p.bytes = size, p.is = state::live;
      if (run) {
        slab& s = slabs.emplace_back();
        s.run = &p, s.base = at, s.bytes = static_cast<std::uint32_t>(size);
        p.is = state::slab, p.in_slab = &s;
      }
      table.enter(p);
      model[at] = &p;
    };
    for (int step = 0; step < 400; ++step) {
      bool const run = random() % 2;
      std::size_t const unit = run ? cell : bins::unit, size = (1 + random() % 12) * (run ? cell : granule);
      address const at = base + random() % (bytes / unit) * unit;
      auto const next = model.lower_bound(at);
      if (heap_block* const there = covering(at); there && random() % 2) {
        table.leave(*there);
        model.erase(there->at);
      } else if (!there && at + size <= base + bytes && (next == model.end() || next->first >= at + size) &&
                 (run || !table.starting_near(at))) {
        enter(at, size, run);
      }
      address const ask = base + random() % bytes;
      heap_block* const expected = covering(ask);
      ASSERT_EQ(table.covering(ask), expected) << "seed " << seed << ", step " << step;
      ASSERT_EQ(table.slab_at(ask), expected ? expected->in_slab : nullptr) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace weir::memory
