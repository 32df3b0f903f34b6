// Exceptions before a rank's steps, against a list of all of them.
// Threads: one.
#include "peer/ranks/exceptions.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/seeds.h"

namespace {

using namespace weir;

TEST(exceptions_before_steps, random_steps_are_told_as_a_list_does) {
  for (std::uint64_t const seed : tests::seeds("steps behind exceptions", 60)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    peer::exceptions_before_steps told;
    std::vector<std::uint64_t> all;
    for (int i = 0; i < 500; ++i) {
      if (random() % 4 == 0 && !all.empty()) {
        std::size_t const count = 1 + random() % std::min<std::size_t>(all.size(), 3);
        told.take_back(count);
        all.resize(all.size() - count);
      } else {
        std::size_t const count = random() % 4;
        std::uint64_t const exceptions = random() % 3 ? 0 : 1 + random() % 5;
        told.take(exceptions, count);
        all.insert(all.end(), count, exceptions);
      }
      ASSERT_EQ(told.steps(), all.size());
      for (std::size_t step = 0; step < all.size(); ++step) {
        // Of long ago, it may know nothing.
        bool const is_recent = all.size() - step <= 60;
        std::uint64_t const before = told.before(step);
        bool const is_forgotten = !is_recent && before == ~std::uint64_t{0};
        ASSERT_TRUE(before == all[step] || is_forgotten) << "step " << step << " of " << all.size() << ": " << before;
      }
    }
  }
}

// A forgotten step blames no rank.
TEST(exceptions_before_steps, of_long_ago_are_the_most_possible) {
  peer::exceptions_before_steps told;
  told.take(1);
  for (int i = 0; i < 63; ++i)
    told.take(2);
  EXPECT_EQ(told.before(0), 1u);
  told.take(0), told.take(3);
  EXPECT_EQ(told.before(0), ~std::uint64_t{0});
  EXPECT_EQ(told.before(1), 2u);
  EXPECT_EQ(told.before(64), 0u);
  EXPECT_EQ(told.before(65), 3u);
}

}  // namespace
