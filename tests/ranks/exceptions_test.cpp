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
    for (int i = 0; i < 300; ++i) {
      if (random() % 4 == 0 && !all.empty()) {
        told.take_back();
        all.pop_back();
      } else {
        all.push_back(random() % 3 ? 0 : 1 + random() % 5);
        told.take(all.back());
      }
      ASSERT_EQ(told.steps(), all.size());
      if (all.empty())
        continue;
      std::size_t const step = all.size() - 1 - random() % std::min<std::size_t>(all.size(), 60);
      ASSERT_EQ(told.before(step), all[step]) << "step " << step << " of " << all.size();
    }
  }
}

// Nobody is to blame for what is not known.
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
