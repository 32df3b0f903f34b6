// Slabs: size classes, and slots against a plain model.
// Threads: one.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "runtime/memory/blocks/arena.h"
#include "runtime/memory/blocks/slab.h"
#include "tests/support/seeds.h"

namespace weir::memory {
namespace {

TEST(size_classes, every_size_gets_the_smallest_class) {
  int expected = 0;
  for (std::size_t n = 1; n <= size_classes::largest; ++n) {
    if (size_classes::bytes(expected) < n)
      ++expected;
    ASSERT_EQ(size_classes::of(n), expected) << n;
  }
  for (std::size_t n = 0; n <= size_classes::largest; ++n)
    ASSERT_EQ(size_classes::lines_of(n), static_cast<std::size_t>(size_classes::of(n)) * slab::lines_a_size) << n;
  EXPECT_EQ(size_classes::of(size_classes::largest), size_classes::count - 1);
  EXPECT_EQ(size_classes::bytes(size_classes::of(516)), 528u);
}

TEST(size_classes, slots_have_their_natural_alignment) {
  for (std::size_t n = 1; n <= size_classes::largest; ++n) {
    std::size_t const rounded = (n + 15) / 16 * 16;
    std::size_t const natural = n >= 16 << 10 ? 512 : rounded & (~rounded + 1);
    ASSERT_EQ(size_classes::bytes(size_classes::of(n)) % natural, 0u) << n;
  }
}

TEST(size_classes, an_alignment_asked_for_divides_the_slot) {
  for (std::size_t alignment = 1; alignment <= size_classes::largest; alignment *= 2) {
    for (std::size_t n : {0, 1, 100, 1000, 5000, 20000, 32768}) {
      int const c = size_classes::of(n, alignment);
      ASSERT_GE(c, 0);
      EXPECT_EQ(size_classes::bytes(c) % alignment, 0u);
      EXPECT_GE(size_classes::bytes(c), n);
    }
  }
  EXPECT_EQ(size_classes::of(100, 64 << 10), -1);
}

// A run is a block of a region; slabs do not depend on the rest of the region.
struct shelf {
  region in{address{1} << 40, std::size_t{64} << 20, 64 << 10, nullptr};
  std::vector<std::unique_ptr<heap_block>> runs;
  slabs small;
  heap_block& run(std::size_t bytes) {
    auto p = std::make_unique<heap_block>();
    p->at = in.base + runs.size() * (std::size_t{1} << 20);
    p->bytes = bytes;
    p->in = &in;
    p->is = state::reserved;
    runs.push_back(std::move(p));
    return *runs.back();
  }
  std::vector<std::string> wrong() const {
    std::vector<std::string> out;
    small.validate(out, "shelf");
    return out;
  }
};

// One multiplication finds the slot.
TEST(slabs, a_slot_is_found_where_it_starts_only) {
  for (int c = 0; c < size_classes::count; ++c) {
    std::size_t const size = size_classes::bytes(c), run = std::size_t{512} << 10;
    slab s;
    s.reciprocal = ~std::uint64_t{0} / size + 1;
    // the starts, and offsets around them
    for (std::size_t offset = 0; offset < run; offset += offset % size == 1 && size > 64 ? size - 2 : 1) {
      std::uint32_t i;
      ASSERT_EQ(s.starts(offset, i), offset % size == 0) << offset << " of " << size;
      ASSERT_EQ(i, offset / size) << offset << " of " << size;
    }
  }
}

TEST(slabs, slots_agree_with_a_set_under_random_operations) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    shelf s;
    struct taken {
      slab* from;
      std::uint32_t index;
      bool pending;
    };
    std::vector<taken> out;
    std::set<address> used;
    for (int i = 0; i < 1500; ++i) {
      if (random() % 5 < 3) {
        std::size_t const bytes = random() % 4 ? random() % 600 : random() % size_classes::largest;
        int const c = size_classes::of(bytes);
        auto got = s.small.take(c, bytes);
        if (!got.from) {
          if (s.runs.size() == 60)
            continue;
          s.small.add(s.run(s.small.next_run_bytes(c)), c);
          got = s.small.take(c, bytes);
        }
        ASSERT_NE(got.from, nullptr);
        ASSERT_TRUE(used.insert(got.from->start(got.index)).second) << "a slot was handed out twice, seed " << seed;
        ASSERT_LE(got.from->start(got.index) + got.from->size, got.from->run->end());
        ASSERT_EQ(got.from->requested(got.index), bytes);
        ASSERT_EQ(s.in.table.covering(got.from->start(got.index) + got.from->size - 1), got.from->run);
        out.push_back({got.from, got.index, false});
      } else if (!out.empty()) {
        taken& t = out[random() % out.size()];
        if (!t.pending && random() % 3 == 0) {
          s.small.hold(*t.from, t.index);
          t.pending = true;
          continue;
        }
        used.erase(t.from->start(t.index));
        s.small.give(*t.from, t.index, 1);
        t = out.back();
        out.pop_back();
      }
    }
    ASSERT_EQ(s.wrong(), std::vector<std::string>{}) << "seed " << seed;
  }
}

// The last empty slab of a class stays.
TEST(slabs, an_emptied_surplus_slab_becomes_a_block_again) {
  shelf s;
  int const c = size_classes::of(1024);
  slab& a = s.small.add(s.run(64 << 10), c);
  slab& b = s.small.add(s.run(64 << 10), c);
  std::vector<slabs::taken> all;
  for (int i = 0; i < 128; ++i)
    all.push_back(s.small.take(c, 1024));
  EXPECT_EQ(s.small.take(c, 1024).from, nullptr);
  int returned = 0;
  for (auto const& t : all) {
    if (s.small.give(*t.from, t.index, 1)) {
      s.small.remove(*t.from, [&](heap_block& run) {
        EXPECT_EQ(run.in_slab, t.from);
        run.in->table.leave(run);
        ++returned;
      });
    }
  }
  EXPECT_EQ(returned, 1) << "one empty slab a class stays";
  EXPECT_TRUE(s.small.any_empty() == &a || s.small.any_empty() == &b);
  EXPECT_EQ(s.wrong(), std::vector<std::string>{});
}

// Slabs are shed once a fourth of the runs is free, too.
TEST(slabs, shed_once_a_page_and_a_fourth_are_free) {
  shelf s;
  constexpr std::size_t run = 64 << 10, size = 8 << 10;
  int const c = size_classes::of(size);
  std::vector<slabs::taken> all;
  for (int i = 0; i < 4; ++i)
    s.small.add(s.run(run), c);
  for (std::size_t i = 0; i < 4 * run / size; ++i)
    all.push_back(s.small.take(c, size));
  auto const free_one = [&] {
    s.small.give(*all.back().from, all.back().index, 1);
    all.pop_back();
  };
  for (std::size_t free = size; free < run; free += size) {
    free_one();
    EXPECT_FALSE(s.small.worth_shedding(size)) << free;
  }
  free_one();
  EXPECT_TRUE(s.small.worth_shedding(size)) << "a fourth";
  EXPECT_TRUE(s.small.worth_shedding(run)) << "and a page";
  EXPECT_FALSE(s.small.worth_shedding(2 * run)) << "no page";
}

// Runs of an arena that is wholly mapped. A plain table has the live blocks, and for each unit of memory the
// number at which it last came free.
struct shedding {
  struct taken {
    slab* from;
    std::uint32_t index;
    std::uint64_t since;  // the number at the allocation
    bool pending = false;
  };
  explicit shedding(std::uint64_t seed) : random(seed) {
    in.set_pages(all, &all);
    blocks.add_region(in, state::free);
  }
  bool take(std::size_t bytes) {
    int const c = size_classes::of(bytes);
    auto got = small.take(c, bytes);
    if (!got.from) {
      heap_block* const run = blocks.take_run(
          random() % 2 ? small.next_run_bytes(c) : round_up(size_classes::bytes(c) * (1 + random() % 4), cell),
          slabs::run_alignment(c));
      if (!run)
        return false;
      std::uint64_t const freed = run->freed;
      latest[&small.add(*run, c)] = freed;
      got = small.take(c, bytes);
    }
    address const at = got.from->start(got.index);
    auto const above = live.lower_bound(at);
    bool const apart = (above == live.end() || at + got.from->size <= above->first) &&
                       (above == live.begin() || std::prev(above)->first + std::prev(above)->second.from->size <= at);
    EXPECT_TRUE(apart) << "a byte was handed out twice";
    live[at] = {got.from, got.index, now};
    return true;
  }
  void back(slab& s) {
    small.remove(s, [&](heap_block& part) { blocks.give(part, s.freed); });
  }
  void give(address at) {
    taken const t = live.at(at);
    live.erase(at);
    std::uint64_t const freed = t.since + random() % (now + 1 - t.since);  // a thread cache may have kept it since
    latest.at(t.from) = std::max(latest.at(t.from), freed);
    for (address a = round_down(at, bins::unit); a < at + t.from->size; a += bins::unit)
      came_free[unit(a)] = std::max(came_free[unit(a)], freed);
    if (small.give(*t.from, t.index, freed))
      back(*t.from);
  }
  address any() { return std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()))->first; }
  void shed(std::size_t refused = ~std::size_t{0}) {
    small.shed(
        [&](heap_block& part, address from, std::size_t bytes) {
          if (refused-- == 0)
            throw std::bad_alloc();
          return blocks.give_part(part, from, bytes, part.in_slab->freed);
        },
        [&](slab& s) { back(s); });
  }
  std::size_t touched() const {  // bytes of the cells that a block touches
    std::set<address> cells;
    for (auto const& [at, t] : live) {
      for (address a = round_down(at, cell); a < at + t.from->size; a += cell)
        cells.insert(a);
    }
    return cells.size() * cell;
  }
  std::vector<std::string> wrong() const {
    std::vector<std::string> out;
    small.validate(out, "slabs");
    blocks.validate(out, "arena");
    for (auto const& [at, t] : live) {
      if (t.from->freed != latest.at(t.from))
        out.push_back("a slab's number is the latest of its run's and its slots'");
    }
    blocks.each_free([&](heap_block const& p) {
      for (address a = p.at; a < p.end(); a += bins::unit) {
        if (came_free[unit(a)] > p.freed)
          return out.push_back("what is free came free later than its piece says");
      }
    });
    return out;
  }
  std::size_t unit(address a) const { return (a - in.base) / bins::unit; }
  std::mt19937_64 random;
  region in{address{1} << 40, std::size_t{64} << 20, 64 << 10, nullptr};
  handle all{driver::memory_handle::none, in.base, in.bytes};
  arena blocks;
  slabs small;
  std::map<address, taken> live;
  std::uint64_t now = 1;
  std::map<slab const*, std::uint64_t> latest;
  std::vector<std::uint64_t> came_free = std::vector<std::uint64_t>(in.bytes / bins::unit);
};

TEST(slabs, after_shedding_each_cell_has_a_slot_in_use) {
  tests::seeds const wanted("slabs_shed", 60);
  std::size_t sparse = 0, refused = 0;
  for (auto const seed : wanted) {
    shedding s(seed);
    for (int phase = 0; phase < 6; ++phase) {
      s.now += s.random() % 4;
      std::vector<address> complete;
      for (auto const& [at, t] : s.live) {
        if (t.pending)
          complete.push_back(at);
      }
      for (address const at : complete)
        s.give(at);
      std::size_t const size = s.random() % 3 ? 1 + s.random() % 2000 : 1 + s.random() % size_classes::largest;
      for (std::size_t bytes = 0; bytes < (std::size_t{2} << 20) && s.take(size); bytes += size + 200) {}
      std::size_t const one_in = 1 + s.random() % 100;
      std::vector<address> all;
      for (auto const& b : s.live)
        all.push_back(b.first);
      for (address const at : all) {
        if (s.random() % one_in == 0)
          continue;
        if (s.random() % 8 == 0)
          s.small.hold(*s.live[at].from, s.live[at].index), s.live[at].pending = true;
        else
          s.give(at);
        s.now += s.random() % 50 == 0;
      }
      std::size_t const before = s.small.in_runs();
      if (s.random() % 2) {
        try {
          s.shed(s.random() % 30);
        } catch (std::bad_alloc const&) {
          ++refused;
        }
        ASSERT_EQ(s.wrong(), std::vector<std::string>{}) << "host memory was refused, seed " << seed;
      }
      s.shed();
      sparse += s.small.in_runs() < before / 2;
      ASSERT_EQ(s.wrong(), std::vector<std::string>{}) << "seed " << seed;
      ASSERT_EQ(s.small.in_runs(), s.touched()) << "seed " << seed;
    }
    while (!s.live.empty())
      s.give(s.any());
    s.shed();
    ASSERT_EQ(s.small.in_runs(), 0u);
    ASSERT_EQ(s.blocks.free_blocks(), 1u) << "all of it is one piece again, seed " << seed;
    ASSERT_EQ(s.wrong(), std::vector<std::string>{}) << "seed " << seed;
  }
  EXPECT_GT(sparse, wanted.count());
  EXPECT_GT(refused, wanted.count());
}

TEST(slabs, slabs_of_516_bytes_waste_less_than_three_percent) {
  std::size_t const run = slabs::run_bytes(size_classes::of(516), 1000);
  EXPECT_LE(static_cast<double>(run) / static_cast<double>(run / 528 * 516), 1.03);
}

// The descriptors of a slab and its run take some 700 B, whatever the run's length; a handle takes some KB.
TEST(slabs, runs_grow_with_the_slabs_and_stay_a_part_of_them) {
  for (int c = 0; c < size_classes::count; ++c) {
    std::size_t held = 0, before = 0;
    for (std::size_t have = 0; have < 600; ++have) {
      std::size_t const run = slabs::run_bytes(c, have),
                        most = have < slabs::many_slabs ? slabs::usual_run_bytes : slabs::most_run_bytes;
      ASSERT_GE(run, std::size_t{64} << 10);
      ASSERT_LE(run, most) << size_classes::bytes(c) << " B, " << have << " slabs";
      ASSERT_LE(run / size_classes::bytes(c), slabs::most_slots);
      ASSERT_GE(run + (std::size_t{256} << 10), before) << "no shorter than those before, but for what fits the size";
      if (have >= slabs::many_slabs) {
        ASSERT_LE(run * 40, held);
      }
      held += run, before = run;
    }
    if (size_classes::bytes(c) >= 512) {
      ASSERT_EQ(before, slabs::most_run_bytes);
    }
  }
}

}  // namespace
}  // namespace weir::memory
