// The search of weir replay --fit, and the sizes of GPUs.
// Threads: one.
#include "tools/weir/fit.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::tool {
namespace {

constexpr std::size_t step = 2 << 20, most = std::size_t{1} << 40;

std::optional<std::size_t> search(std::size_t below, std::size_t guess, std::size_t needed, std::size_t& tries) {
  return smallest_limit(below, guess, most, step, [&](std::size_t limit) {
    ++tries;
    EXPECT_GT(limit, below);
    return limit >= needed;
  });
}

TEST(smallest_limit, is_found_to_a_step_wherever_it_lies) {
  for (std::size_t const guess : {10 * step, 100 * step}) {
    for (std::size_t needed = 5 * step + 1; needed < 1000 * step; needed += 7 * step + 3) {
      std::size_t tries = 0;
      auto const found = search(4 * step, guess, needed, tries);
      ASSERT_TRUE(found);
      EXPECT_GE(*found, needed);
      EXPECT_LT(*found, needed + step);
      EXPECT_LT(tries, 26u) << needed;
    }
  }
}

TEST(smallest_limit, is_none_where_the_most_is_too_small) {
  std::size_t tries = 0;
  EXPECT_FALSE(search(0, step, most + 1, tries));
  EXPECT_LT(tries, 25u);
}

// Handles have other sizes under another limit, so that a larger one may hold less.
TEST(smallest_limit, lies_above_a_larger_limit_that_is_refused) {
  auto const found = smallest_limit(0, 10 * step, most, step,
                                    [](std::size_t limit) { return limit >= 10 * step && limit != 12 * step; });
  EXPECT_EQ(found, 13 * step);
}

TEST(gpu_sizes, grow_and_leave_room_beside_weir) {
  gpu_size const* before = nullptr;
  for (gpu_size const& g : gpu_sizes()) {
    EXPECT_LT(g.usable, static_cast<std::size_t>(g.gb) << 30);
    EXPECT_EQ(smallest_gpu(g.usable - beside_weir), &g);
    EXPECT_EQ(smallest_gpu(before ? before->usable - beside_weir + 1 : 0), &g);
    before = &g;
  }
  EXPECT_EQ(smallest_gpu(before->usable), nullptr);
}

}  // namespace
}  // namespace weir::tool
