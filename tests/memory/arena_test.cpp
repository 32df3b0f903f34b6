// The arena against a plain model: a byte map of what is allocated, mapped and unmapped.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"

namespace weir::memory {
namespace {

// A region of an arena whose pages are mapped by hand, one handle each stretch.
struct bare_arena {
  std::unique_ptr<region> in;
  std::map<address, handle> handles;
  arena blocks;

  explicit bare_arena(std::size_t bytes) : in(new region(address{1} << 40, bytes, page, nullptr)) {
    blocks.add_region(*in, state::unmapped);
  }

  void map(address at, std::size_t bytes) {
    in->set_pages({driver::memory_handle::none, at, bytes}, &(handles[at] = {driver::memory_handle::none, at, bytes}));
  }
  heap_block* grow(std::size_t bytes, std::size_t alignment = bins::unit) {
    growth_plan g;
    if (!blocks.plan(bytes, alignment, arena::zone::blocks, g))
      return nullptr;
    for (auto const& hole : g.missing)
      map(hole.at, hole.bytes);
    return blocks.commit(g);
  }
  std::vector<std::string> wrong() const {
    std::vector<std::string> out;
    blocks.validate(out, "arena");
    return out;
  }
};

#define EXPECT_SOUND(a) EXPECT_EQ((a).wrong(), std::vector<std::string>{})

TEST(arena, takes_an_exact_size_before_a_larger_piece) {
  bare_arena a(64 * page);
  heap_block* const small = a.grow(2 * page);
  heap_block* const wall = a.grow(page);
  heap_block* const large = a.grow(8 * page);
  a.grow(page);
  address const at = small->at;
  (void)wall;
  a.blocks.give(*large, 0);
  a.blocks.give(*small, 0);
  heap_block* const again = a.blocks.take(2 * page, bins::unit);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->at, at);
  EXPECT_SOUND(a);
}

TEST(arena, large_blocks_fit_lowest_and_small_ones_tightest) {
  bare_arena a(256 * page);
  heap_block* const low = a.grow(20 * page);
  a.grow(page);
  heap_block* const tight = a.grow(8 * page);
  a.grow(page);
  heap_block* const least = a.grow(5 * page);
  a.grow(page);
  address const low_at = low->at, least_at = least->at;
  a.blocks.give(*low, 0);
  a.blocks.give(*tight, 0);
  a.blocks.give(*least, 0);
  EXPECT_EQ(a.blocks.take(page + bins::unit, bins::unit)->at, least_at);
  heap_block* const first = a.blocks.take(8 * page, bins::unit);
  EXPECT_EQ(first->at, low_at);
  EXPECT_EQ(a.blocks.take(8 * page, bins::unit)->at, low_at + 8 * page);
  a.blocks.give(*first, 7);
  EXPECT_EQ(a.blocks.take_if(8 * page, bins::unit, [](heap_block const& p) { return p.freed == 7; })->at, low_at);
  EXPECT_SOUND(a);
}

// The two mix only when memory is short.
TEST(arena, runs_of_slots_lie_apart_from_blocks) {
  auto in = std::make_unique<region>(address{1} << 40, 64 * page, page, nullptr);
  in->runs = in->base + 48 * page;
  std::map<address, handle> handles;
  arena blocks;
  blocks.add_region(*in, state::unmapped);
  auto const grow = [&](std::size_t bytes, arena::zone part) -> heap_block* {
    growth_plan g;
    if (!blocks.plan(bytes, bins::unit, part, g))
      return nullptr;
    for (auto const& hole : g.missing)
      in->set_pages({driver::memory_handle::none, hole.at, hole.bytes},
                    &(handles[hole.at] = {driver::memory_handle::none, hole.at, hole.bytes}));
    return blocks.commit(g);
  };
  auto const wrong = [&] {
    std::vector<std::string> out;
    blocks.validate(out, "arena");
    return out;
  };
  heap_block* const last = grow(48 * page, arena::zone::blocks);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->end(), in->runs);
  EXPECT_EQ(grow(page, arena::zone::blocks), nullptr) << "the rest is for runs";
  heap_block* const run = grow(2 * page, arena::zone::runs);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->at, in->runs);
  blocks.give(*last, 0);
  blocks.give(*run, 0);
  EXPECT_EQ(wrong(), std::vector<std::string>{});
  EXPECT_EQ(blocks.free_blocks(), 2u) << "neighbours in different parts stay two";
  EXPECT_EQ(blocks.take_run(page, cell)->at, in->runs);
  ASSERT_NE(blocks.take(48 * page, bins::unit), nullptr);
  EXPECT_EQ(blocks.take(page, bins::unit), nullptr);
  EXPECT_EQ(blocks.take_anywhere(page, bins::unit)->at, in->runs + page);
  EXPECT_EQ(wrong(), std::vector<std::string>{});
}

TEST(arena, pieces_that_merged_are_used_again) {
  bare_arena a(64 * page);
  a.blocks.give(*a.grow(8 * page), 0);
  std::set<heap_block*> made;
  for (int i = 0; i < 100; ++i) {
    heap_block* const low = a.blocks.take(page, bins::unit);
    heap_block* const next = a.blocks.take(page, bins::unit);
    made.insert({low, next});
    a.blocks.give(*low, 0);
    a.blocks.give(*next, 0);  // merges with the block before it and the block behind it
  }
  EXPECT_LE(made.size(), 4u);
  EXPECT_SOUND(a);
}

TEST(arena, no_two_neighbours_are_both_free) {
  bare_arena a(64 * page);
  heap_block* const x = a.grow(page);
  heap_block* const y = a.grow(page);
  heap_block* const z = a.grow(page);
  address const at = x->at;
  a.blocks.give(*x, 1);
  a.blocks.give(*z, 3);
  a.blocks.give(*y, 2);
  EXPECT_EQ(a.blocks.free_blocks(), 1u);
  EXPECT_SOUND(a);
  // The merged block has the newest stamp of the three.
  heap_block* const all = a.blocks.take_if(3 * page, bins::unit, [](heap_block const& p) { return p.freed == 3; });
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->at, at);
}

TEST(arena, growth_takes_the_window_with_fewest_unmapped_bytes) {
  bare_arena a(64 * page);
  heap_block* const first = a.grow(4 * page);
  heap_block* const wall = a.grow(page);
  heap_block* const last = a.grow(3 * page);
  (void)wall;
  a.blocks.give(*first, 0);
  address const tail = last->at;
  a.blocks.give(*last, 0);
  growth_plan g;
  ASSERT_TRUE(a.blocks.plan(5 * page, bins::unit, arena::zone::blocks, g));
  EXPECT_EQ(g.block, tail);  // three pages are mapped there already
  EXPECT_EQ(g.missing_bytes, 2 * page);
  for (auto const& hole : g.missing)
    a.map(hole.at, hole.bytes);
  a.blocks.commit(g);
  EXPECT_SOUND(a);
}

TEST(arena, growth_uses_free_memory_behind_a_gap) {
  for (auto const part : {arena::zone::blocks, arena::zone::runs}) {
    auto in = std::make_unique<region>(address{1} << 40, 128 * page, page, nullptr);
    in->runs = in->base + 64 * page;
    std::map<address, handle> handles;
    arena blocks;
    blocks.add_region(*in, state::unmapped);
    auto const map = [&](growth_plan const& g) {
      for (auto const& hole : g.missing)
        in->set_pages({driver::memory_handle::none, hole.at, hole.bytes},
                      &(handles[hole.at] = {driver::memory_handle::none, hole.at, hole.bytes}));
    };
    auto const grow = [&](std::size_t bytes) {
      growth_plan g;
      EXPECT_TRUE(blocks.plan(bytes, bins::unit, part, g));
      map(g);
      return blocks.commit(g);
    };
    heap_block* const low = grow(3 * page);   // becomes an unmapped block
    heap_block* const free = grow(3 * page);  // stays mapped
    grow(page);
    heap_block* const other = grow(2 * page);
    grow(page);
    address const at = low->at, behind = free->at;
    blocks.give(*low, 0);
    auto const going = blocks.reserve_handles(3 * page, arena::first::lowest, [](std::uint64_t) { return true; });
    ASSERT_EQ(going.all.size(), 1u);
    for (handle const& h : going.all.front().handles)
      in->set_pages(h, nullptr);
    blocks.release_done(*going.all.front().place);
    blocks.give(*free, 0);
    blocks.give(*other, 0);
    growth_plan g;
    ASSERT_TRUE(blocks.plan(5 * page, bins::unit, part, g));
    EXPECT_EQ(g.block, at + page);
    EXPECT_EQ(g.block + g.bytes, behind + 3 * page);
    EXPECT_EQ(g.missing_bytes, 2 * page);
    map(g);
    blocks.commit(g);
    std::vector<std::string> wrong;
    blocks.validate(wrong, "arena");
    EXPECT_EQ(wrong, std::vector<std::string>{});
  }
}

// An alias saves only the bytes that lie in the reserved block.
TEST(arena, growth_over_a_part_of_a_ghost_saves_that_part_alone) {
  bare_arena a(64 * page);
  a.grow(page);
  heap_block* const first = a.grow(8 * page);
  a.grow(40 * page);
  a.blocks.give(*first, 0);
  auto const going = a.blocks.reserve_handles(8 * page, arena::first::lowest, [](std::uint64_t) { return true; });
  for (handle const& h : going.all.front().handles)
    a.in->set_pages(h, nullptr);
  a.blocks.release_done(*going.all.front().place);  // unmapped: 8 pages here, and 15 at the end
  aliased_handle moved{};
  alias_table::places all;
  address const at = a.in->base + page;
  all[at] = {&moved, nullptr, at, 8 * page, {}, true, false};
  alias_view const sight{&all, nullptr,
                         [](void const*, alias const&, address, address) { return alias_view::outcome::swaps; }};
  growth_plan g;
  // The only place that fits lies inside the alias.
  ASSERT_TRUE(a.blocks.plan(3 * page, 4 * page, arena::zone::blocks, g, sight));
  EXPECT_EQ(g.block, a.in->base + 4 * page) << "where a handle comes home the block costs next to nothing";
  EXPECT_EQ(g.missing_bytes, 3 * page);
}

TEST(arena, of_equal_pieces_the_first_regions_is_taken) {
  bare_arena a(64 * page);
  region second(address{1} << 41, 64 * page, page, nullptr);
  heap_block* const low = a.grow(8 * page);
  a.grow(56 * page);
  a.blocks.add_region(second, state::unmapped);
  handle pages{driver::memory_handle::none, second.base, second.bytes};
  second.set_pages(pages, &pages);
  auto const grow = [&](std::size_t bytes) {
    growth_plan g;
    EXPECT_TRUE(a.blocks.plan(bytes, bins::unit, arena::zone::blocks, g));
    return a.blocks.commit(g);
  };
  heap_block* const high = grow(8 * page);
  grow(56 * page);
  ASSERT_EQ(high->in, &second);
  address const first = low->at;
  a.blocks.give(*high, 0);
  a.blocks.give(*low, 0);
  EXPECT_EQ(a.blocks.take(page, bins::unit)->at, first);
  EXPECT_SOUND(a);
}

TEST(arena, a_new_region_has_no_stamp_of_its_past) {
  bare_arena a(64 * page);
  heap_block* const low = a.grow(page);
  heap_block* const next = a.grow(page);
  a.blocks.give(*low, 7);
  a.blocks.give(*next, 9);  // two blocks merge, and one descriptor becomes spare
  region segment(address{1} << 41, 4 * page, page, nullptr);
  handle h{driver::memory_handle::none, segment.base, segment.bytes};
  segment.set_pages(h, &h);
  a.blocks.add_region(segment, state::free);
  EXPECT_EQ(segment.first->freed, 0u);
  EXPECT_SOUND(a);
  a.blocks.drop_region(segment);
}

// The rest stays unmapped.
TEST(arena, a_growth_rolled_back_leaves_mapped_memory_free) {
  bare_arena a(64 * page);
  growth_plan g;
  ASSERT_TRUE(a.blocks.plan(5 * page, bins::unit, arena::zone::blocks, g));
  ASSERT_EQ(g.missing.size(), 1u);
  a.map(g.missing[0].at, 2 * page);
  EXPECT_EQ(a.blocks.take(page, bins::unit), nullptr) << "a reserved block is not allocated";
  a.blocks.roll_back(g);
  EXPECT_SOUND(a);
  EXPECT_EQ(a.blocks.largest_free(), 2 * page);
  EXPECT_NE(a.grow(5 * page), nullptr);
  EXPECT_SOUND(a);
}

TEST(arena, blocks_are_found_by_interior_addresses_however_large) {
  bare_arena a(4096 * page);
  heap_block* const big = a.grow(3000 * page);
  heap_block* const next = a.grow(granule);
  for (std::size_t at : {std::size_t{0}, std::size_t{1}, granule, 1500 * page + 7, 3000 * page - 1})
    EXPECT_EQ(a.in->table.covering(big->at + at), big);
  EXPECT_EQ(a.in->table.covering(big->at + 3000 * page), next);
  EXPECT_EQ(a.in->table.covering(next->at + granule), nullptr);
  address const at = big->at;
  a.blocks.give(*big, 0);
  EXPECT_EQ(a.in->table.covering(at + 1500 * page), nullptr);
}

// Pages 9 and 10 are not mapped, but a block there fills them. Where memory is mapped it would leave three ends.
TEST(arena, a_block_goes_where_the_fewest_pages_come_into_use) {
  bare_arena a(64 * page);
  a.blocks.place(arena::places::openings);
  a.grow(page + page * 3 / 4);
  heap_block* const gone = a.grow(4 * page);
  a.grow(2 * page + page / 4);
  heap_block* const last = a.grow(page / 2);
  ASSERT_EQ(last->at, a.in->base + 8 * page);
  a.blocks.give(*gone, 0);
  std::size_t const bytes = 2 * page + page / 2;
  EXPECT_EQ(a.blocks.take(bytes, bins::unit), nullptr);
  heap_block* const p = a.grow(bytes);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(p->at, last->end());
  EXPECT_SOUND(a);
  a.blocks.place(arena::places::mapped);
  EXPECT_EQ(a.blocks.take(bytes, bins::unit)->at, a.in->base + page + page * 3 / 4);
  EXPECT_SOUND(a);
}

TEST(arena, random_takes_and_gives_agree_with_a_byte_map) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    bare_arena a(256 * page);
    std::map<address, std::pair<heap_block*, std::size_t>> live;
    for (int i = 0; i < 400; ++i) {
      if (random() % 100 == 0)
        a.blocks.place(random() % 4 ? arena::places::openings : arena::places::mapped);
      if (random() % 5 < 3) {
        std::size_t const bytes =
            std::max(round_up(random() % (random() % 4 ? 3 * page : 20 * page) + 1, bins::unit), granule);
        std::size_t const alignment = random() % 6 ? bins::unit : std::size_t{1} << (9 + random() % 9);
        heap_block* p = a.blocks.take(bytes, alignment);
        if (!p)
          p = a.grow(bytes, alignment);
        if (!p)
          continue;
        ASSERT_EQ(p->at % alignment, 0u);
        ASSERT_EQ(p->bytes, bytes);
        auto const after = live.lower_bound(p->at);
        ASSERT_TRUE(after == live.end() || after->first >= p->at + bytes) << "seed " << seed;
        ASSERT_TRUE(after == live.begin() || std::prev(after)->first + std::prev(after)->second.second <= p->at)
            << "seed " << seed;
        for (address at = p->at; at < p->at + bytes; at += page)
          ASSERT_NE(a.in->page(at), nullptr) << "a block without pages, seed " << seed;
        live[p->at] = {p, bytes};
      } else if (!live.empty()) {
        auto const which = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        a.blocks.give(*which->second.first, static_cast<std::uint64_t>(i));
        live.erase(which);
      } else {
        continue;
      }
      if (random() % 16 == 0) {  // a wholly free handle is released
        auto const going = a.blocks.reserve_handles(1 + random() % (6 * page),
                                                    random() % 2 ? arena::first::oldest : arena::first::lowest,
                                                    [&](std::uint64_t) { return random() % 4 != 0; });
        for (released const& g : going.all) {
          for (handle const& h : g.handles) {
            if (random() % 4 == 0)
              continue;  // the driver refuses
            a.in->set_pages(h, nullptr);
            a.handles.erase(h.at);
          }
          a.blocks.release_done(*g.place);
        }
      }
    }
    ASSERT_EQ(a.wrong(), std::vector<std::string>{}) << "seed " << seed;
    for (auto const& [at, p] : live)
      a.blocks.give(*p.first, 0);
    ASSERT_EQ(a.wrong(), std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST(arena, handles_leave_the_oldest_or_the_lowest_piece) {
  bare_arena a(64 * page);
  heap_block* const low = a.grow(2 * page);
  a.grow(page);
  heap_block* const high = a.grow(2 * page);
  a.grow(page);
  address const where[] = {low->at, high->at};
  a.blocks.give(*high, 1);
  a.blocks.give(*low, 2);
  for (auto const& [which, at] :
       {std::pair{arena::first::oldest, where[1]}, std::pair{arena::first::lowest, where[0]}}) {
    auto const going = a.blocks.reserve_handles(page, which, [](std::uint64_t) { return true; });
    ASSERT_EQ(going.all.size(), 1u);
    EXPECT_EQ(going.all.front().place->at, at);
    a.blocks.release_done(*going.all.front().place);
  }
  EXPECT_SOUND(a);
}

// Returns: the most blocks that any one call visited, of a few thousand calls. The arena has `live_blocks`
// live blocks and a tenth as many free ones.
std::uint64_t most_looks(std::size_t live_blocks) {
  std::mt19937_64 random(live_blocks);
  bare_arena a(std::size_t{1} << 36);
  std::vector<heap_block*> live;
  std::uint64_t most = 0;
  std::uint64_t predicate = 0;
  auto const step = [&](auto act) {
    std::uint64_t const before = a.blocks.looked_at() + predicate;
    act();
    most = std::max(most, a.blocks.looked_at() + predicate - before);
  };
  auto const size = [&] { return (64 + random() % 300) * bins::unit * (random() % 16 ? 1 : 40); };
  auto const take = [&](std::size_t bytes) {
    heap_block* const p = a.blocks.take_if(bytes, bins::unit, [&](heap_block const&) { return ++predicate; });
    return p ? p : a.grow(bytes);
  };
  while (live.size() < live_blocks + live_blocks / 10)
    live.push_back(take(size()));
  for (std::size_t i = 0; i < live_blocks / 10; ++i) {
    std::swap(live[random() % live.size()], live.back());
    a.blocks.give(*live.back(), i);
    live.pop_back();
  }
  for (int i = 0; i < 3000; ++i) {
    std::size_t const which = random() % live.size();
    step([&] { a.blocks.give(*live[which], static_cast<std::uint64_t>(i)); });
    step([&] { live[which] = take(size()); });
    if (i % 8)
      continue;
    step([&] { a.blocks.give(*a.grow(10'000 * bins::unit), static_cast<std::uint64_t>(i)); });
    step([&] {
      auto const found = a.blocks.reserve_handle(
          64 * page, page, [&](handle const&) { return ++predicate; }, [&](std::uint64_t) { return ++predicate; });
      if (found.from.place)
        a.blocks.release_done(*found.from.place);
    });
  }
  return most;
}

// 100,000 blocks compared with 1,000.
TEST(arena, no_call_looks_at_more_pieces_among_more_blocks) {
  std::uint64_t const few = most_looks(1'000), many = most_looks(100'000);
  std::cout << "at most " << few << " of a thousand, " << many << " of a hundred thousand\n";
  EXPECT_LE(many, few + few / 2 + 64);
  EXPECT_LE(many, 6000u);
}

}  // namespace
}  // namespace weir::memory
