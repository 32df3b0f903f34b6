// A thread's pools in force, against a list; and which addresses are memory.
// Threads: as each test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/memory/heap/thread_caches.h"
#include "runtime/memory/space/mapped_spaces.h"
#include "simulator/machine/machine.h"

namespace weir::memory {
namespace {

// More pools than a thread keeps tables for, entered and left in any order.
TEST(thread_pools, the_last_entered_of_a_table_is_in_force) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::minstd_rand random(seed);
    std::deque<memory_pool> pools;
    for (std::uint64_t i = 0; i < 40; ++i)
      pools.emplace_back(i % 3 + 1, seed * 1000 + i, memory_pool::kind::ordinary, "test", ~std::size_t{0});
    std::vector<std::pair<std::uint64_t, memory_pool*>> entered;
    for (int step = 0; step < 600; ++step) {
      if (random() % 2 && entered.size() < 12) {
        memory_pool& p = pools[random() % pools.size()];
        entered.emplace_back(thread_caches::enter(p), &p);
      } else if (!entered.empty()) {
        auto const at = entered.begin() + static_cast<std::ptrdiff_t>(random() % entered.size());
        thread_caches::leave(at->first);
        entered.erase(at);
      }
      for (std::uint64_t of = 1; of <= 3; ++of) {
        auto const last =
            std::find_if(entered.rbegin(), entered.rend(), [&](auto const& e) { return e.second->of == of; });
        ASSERT_EQ(thread_caches::in_force(of), last == entered.rend() ? nullptr : last->second) << "seed " << seed;
      }
    }
    while (!entered.empty())
      thread_caches::leave(entered.back().first), entered.pop_back();
  }
}

TEST(thread_pools, another_threads_pool_is_not_in_force) {
  memory_pool pool(1, 7, memory_pool::kind::ordinary, "test", ~std::size_t{0});
  std::uint64_t const in = thread_caches::enter(pool);
  std::thread([] { EXPECT_EQ(thread_caches::in_force(1), nullptr); }).join();
  EXPECT_EQ(thread_caches::in_force(1), &pool);
  thread_caches::leave(in);
  EXPECT_EQ(thread_caches::in_force(1), nullptr);
}

TEST(mapped_spaces, finds_regions_until_the_space_leaves) {
  auto made = driver::sim::make({.devices = 1, .memory = 4 << 20});
  ASSERT_TRUE(made.machine->open(0).ok());
  address_space space(*made.machine, 0);
  ASSERT_TRUE(space.open(made.machine->info(0).value, 0).ok());
  char place = 0;
  region const* const r = space.take(1, reinterpret_cast<stream_heap&>(place));  // only its address is used
  EXPECT_EQ(mapped_spaces::find(r->base), nullptr);
  std::uint64_t const before = fast_path_version();
  mapped_spaces::enter(space.base(), space.bytes(), space);
  EXPECT_NE(fast_path_version(), before) << "tables forget what they have seen";
  EXPECT_EQ(mapped_spaces::find(r->base), r);
  EXPECT_EQ(mapped_spaces::find(r->base + r->bytes), nullptr);
  mapped_spaces::leave(space.base());
  EXPECT_EQ(mapped_spaces::find(r->base), nullptr);
}

}  // namespace
}  // namespace weir::memory
