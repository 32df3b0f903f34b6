// The pinned pool's map of addresses against an obvious model.
// Threads: one.
#include "streams/pinned/range_map.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

namespace weir::streams {
namespace {

using address = pinned_space::address;
constexpr address base = 0x10000000;

TEST(pinned_space, takes_the_smallest_fit_and_cuts_it_to_size) {
  pinned_space space;
  space.add(base, 4096);
  space.add(base + 0x100000, 1024);
  auto const small = space.take(512, 64);
  EXPECT_EQ(small->first, base + 0x100000);
  EXPECT_EQ(small->second.bytes, 512u);
  EXPECT_EQ(space.take(4096, 64)->first, base);
  EXPECT_EQ(space.take(1024, 64), space.end());
  EXPECT_EQ(space.validate(), std::vector<std::string>{});
}

TEST(pinned_space, an_aligned_range_leaves_the_rest_before_it_free) {
  pinned_space space;
  space.add(base + 64, 8192 - 64);
  auto const aligned = space.take(1024, 4096);
  EXPECT_EQ(aligned->first, base + 4096);
  EXPECT_EQ(space.take(4096 - 64, 64)->first, base + 64);
  EXPECT_EQ(space.validate(), std::vector<std::string>{});
}

TEST(pinned_space, neighbours_merge_but_never_across_segments) {
  pinned_space space;
  space.add(base, 4096);
  space.add(base + 4096, 4096);
  auto const a = space.take(2048, 64), b = space.take(2048, 64), c = space.take(4096, 64);
  space.give(a);
  EXPECT_TRUE(space.wholly_free().empty());
  space.give(b);
  EXPECT_EQ(space.wholly_free().size(), 1u);
  space.give(c);
  EXPECT_EQ(space.wholly_free(), (std::vector<address>{base, base + 4096}));
  EXPECT_EQ(space.largest_free(), 4096u);
  space.remove(base);
  EXPECT_EQ(space.find(base), space.end());
  EXPECT_EQ(space.validate(), std::vector<std::string>{});
}

// Where the system put a segment differs from process to process; a run of a seed must not.
TEST(pinned_space, of_equal_fits_the_oldest_segments_serves) {
  for (bool const upwards : {true, false}) {
    pinned_space space;
    address const first = upwards ? base : base + 8192, second = upwards ? base + 8192 : base;
    space.add(first, 4096);
    space.add(second, 4096);
    EXPECT_EQ(space.wholly_free(), (std::vector<address>{first, second}));
    EXPECT_EQ(space.take(64, 64)->first, first);
    EXPECT_EQ(space.take(4096, 64)->first, second);
    EXPECT_EQ(space.validate(), std::vector<std::string>{});
  }
}

// Any node precedes none.
TEST(pinned_space, the_wanted_node_precedes_a_better_fit) {
  pinned_space space;
  space.add(base, 4096, 0);
  space.add(base + 0x100000, 1024, 1);
  space.add(base + 0x200000, 8192, 1);
  auto const near = space.take(512, 64, 0);
  EXPECT_EQ(near->first, base) << "the smallest fits better, and is far";
  EXPECT_EQ(space.take(2048, 64, 1)->first, base + 0x200000);
  EXPECT_EQ(space.take(512, 64)->first, base + 0x100000) << "any: the best fit";
  EXPECT_EQ(space.take(4096, 64, 0)->first, base + 0x200000 + 2048) << "far, where nothing near holds it";
  EXPECT_EQ(space.validate(), std::vector<std::string>{});
}

TEST(pinned_space, segments_are_idle_since_they_became_whole) {
  pinned_space space;
  space.add(base, 4096);
  space.add(base + 0x100000, 4096);
  auto const first = space.take(4096, 64), second = space.take(4096, 64);
  auto const whole = space.give(first);
  ASSERT_TRUE(space.is_whole(whole));
  space.note_idle(whole, 100);
  auto const part = space.take(64, 64);
  EXPECT_FALSE(space.is_whole(part));
  EXPECT_TRUE(space.wholly_free(1000).empty()) << "in use again, whenever it was idle";
  space.note_idle(space.give(part), 200);
  space.note_idle(space.give(second), 300);
  EXPECT_TRUE(space.wholly_free(199).empty());
  EXPECT_EQ(space.wholly_free(200), std::vector<address>{base});
  EXPECT_EQ(space.wholly_free(300).size(), 2u);
  EXPECT_EQ(space.wholly_free().size(), 2u);
}

TEST(pinned_space, random_ranges_never_overlap_and_always_merge) {
  char const* const given = std::getenv("WEIR_TEST_SEED");
  std::uint64_t const first = given ? std::strtoull(given, nullptr, 0) : 1;
  for (std::uint64_t seed = first; seed < first + (given ? 1 : 200); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    pinned_space space;
    std::map<address, std::size_t> live;
    space.add(base, 1 << 16);
    space.add(base + (1 << 16), 1 << 14);
    for (int step = 0; step < 300; ++step) {
      if (random() % 3 && !(live.size() > 60)) {
        std::size_t const bytes = 64 * (1 + random() % 60), alignment = std::size_t{64} << random() % 5;
        auto const got = space.take(bytes, alignment);
        if (got == space.end())
          continue;
        ASSERT_EQ(got->first % alignment, 0u);
        ASSERT_EQ(got->second.bytes, bytes);
        auto const after = live.lower_bound(got->first);
        ASSERT_TRUE(after == live.end() || got->first + bytes <= after->first);
        ASSERT_TRUE(after == live.begin() || std::prev(after)->first + std::prev(after)->second <= got->first);
        live.emplace(got->first, bytes);
      } else if (!live.empty()) {
        auto const victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        auto const inside = space.find(victim->first + random() % victim->second);
        ASSERT_EQ(inside->first, victim->first);
        space.give(inside);
        live.erase(victim);
      }
      ASSERT_EQ(space.validate(), std::vector<std::string>{});
    }
    for (auto const& [at, bytes] : live)
      space.give(space.find(at));
    ASSERT_EQ(space.wholly_free().size(), 2u);
  }
}

}  // namespace
}  // namespace weir::streams
