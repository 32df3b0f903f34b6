// Slabs: size classes, and slots against a plain model.
// Threads: one.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "runtime/memory/slab.h"

namespace weir::memory {
namespace {

TEST(size_classes, every_size_gets_the_smallest_class_that_holds_it) {
  int expected = 0;
  for (std::size_t n = 1; n <= size_classes::largest; ++n) {
    if (size_classes::bytes(expected) < n) ++expected;
    ASSERT_EQ(size_classes::of(n), expected) << n;
  }
  for (std::size_t n = 0; n <= size_classes::largest; ++n) ASSERT_EQ(size_classes::quick(n), static_cast<std::uint32_t>(size_classes::of(n))) << n;
  EXPECT_EQ(size_classes::of(size_classes::largest), size_classes::count - 1);
  EXPECT_EQ(size_classes::bytes(size_classes::of(516)), 528u);
}

TEST(size_classes, slots_have_the_natural_alignment_of_what_they_hold) {
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

// A run is a piece of a region; slabs do not care what else lies there.
struct shelf {
  region in{address{1} << 40, std::size_t{64} << 20, 64 << 10, nullptr};
  std::vector<std::unique_ptr<piece>> runs;
  slabs small;
  piece& run(std::size_t bytes) {
    auto p = std::make_unique<piece>();
    p->at = in.base + runs.size() * (std::size_t{1} << 20);
    p->bytes = bytes;
    p->in = &in;
    p->is = state::live;
    in.enter(*p);
    runs.push_back(std::move(p));
    return *runs.back();
  }
  std::vector<std::string> wrong() const {
    std::vector<std::string> out;
    small.validate(out, "shelf");
    return out;
  }
};

TEST(slabs, a_slot_is_found_by_one_multiplication_where_it_starts_and_nowhere_else) {
  for (int c = 0; c < size_classes::count; ++c) {
    std::size_t const size = size_classes::bytes(c), run = std::size_t{512} << 10;
    slab s;
    s.reciprocal = ~std::uint64_t{0} / size + 1;
    for (std::size_t offset = 0; offset < run; offset += offset % size == 1 && size > 64 ? size - 2 : 1) {  // the starts, and what lies around them
      std::uint32_t i;
      ASSERT_EQ(s.starts(offset, i), offset % size == 0) << offset << " of " << size;
      ASSERT_EQ(i, offset / size) << offset << " of " << size;
    }
  }
}

TEST(slabs, slots_agree_with_a_plain_set_under_random_takes_holds_and_gives) {
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
          if (s.runs.size() == 60) continue;
          s.small.add(s.run(s.small.next_run_bytes(c)), c);
          got = s.small.take(c, bytes);
        }
        ASSERT_NE(got.from, nullptr);
        ASSERT_TRUE(used.insert(got.from->start(got.index)).second) << "a slot was handed out twice, seed " << seed;
        ASSERT_LE(got.from->start(got.index) + got.from->size, got.from->run->end());
        ASSERT_EQ(got.from->requested(got.index), bytes);
        ASSERT_EQ(s.in.covering(got.from->start(got.index) + got.from->size - 1), got.from->run);
        out.push_back({got.from, got.index, false});
      } else if (!out.empty()) {
        taken& t = out[random() % out.size()];
        if (!t.pending && random() % 3 == 0) {
          s.small.hold(*t.from, t.index);
          t.pending = true;
          continue;
        }
        used.erase(t.from->start(t.index));
        s.small.give(*t.from, t.index);
        t = out.back();
        out.pop_back();
      }
    }
    ASSERT_EQ(s.wrong(), std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST(slabs, an_emptied_slab_beyond_the_first_of_its_class_may_go_and_its_run_is_a_block_again) {
  shelf s;
  int const c = size_classes::of(1024);
  slab& a = s.small.add(s.run(64 << 10), c);
  slab& b = s.small.add(s.run(64 << 10), c);
  std::vector<slabs::taken> all;
  for (int i = 0; i < 128; ++i) all.push_back(s.small.take(c, 1024));
  EXPECT_EQ(s.small.take(c, 1024).from, nullptr);
  int returned = 0;
  for (auto const& t : all) {
    if (s.small.give(*t.from, t.index)) {
      piece& run = s.small.remove(*t.from);
      EXPECT_EQ(run.is, state::live);
      ++returned;
    }
  }
  EXPECT_EQ(returned, 1) << "one empty slab a class stays";
  EXPECT_TRUE(s.small.any_empty() == &a || s.small.any_empty() == &b);
  EXPECT_EQ(s.wrong(), std::vector<std::string>{});
}

TEST(slabs, many_slabs_of_516_bytes_waste_less_than_three_parts_in_a_hundred) {
  std::size_t const run = slabs::run_bytes(size_classes::of(516), 1000);
  EXPECT_LE(static_cast<double>(run) / static_cast<double>(run / 528 * 516), 1.03);
}

}  // namespace
}  // namespace weir::memory
