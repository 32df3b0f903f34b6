// The patterns of weir bench alloc.
// Threads: those of a pattern.
#include "tools/weir/patterns.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir::tool::patterns {
namespace {

// Slow while the pattern calibrates its round, so a round ends before most threads have run.
struct slow_at_first {
  base::atomic<bool>* slow;
  void* take(std::size_t) const {
    if (slow->load())
      base::sleep_ns(400'000);
    return nullptr;
  }
  void give(void*) const {}
};

// Holds also if another thread finishes first.
TEST(patterns, each_thread_has_a_figure) {
  base::atomic<bool> slow{true};
  auto const make = [&slow](int) { return slow_at_first{&slow}; };
  threads<decltype(make)> sixteen(make, {}, 16, threads_work::together);
  slow.store(false);
  for (int i = 0; i < 20; ++i)
    sixteen.round();
  ASSERT_EQ(sixteen.by_thread.size(), 16u);
  for (auto const& rounds : sixteen.by_thread) {
    for (double const ns : rounds)
      ASSERT_TRUE(std::isfinite(ns));
  }
}

}  // namespace
}  // namespace weir::tool::patterns
