// The bound on reserved memory, at every step of random programs: bound_program.h says which.
// Seeds as tests/support/seeds.h says.
// Threads: one.
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "tests/memory/counted_calls.h"
#include "tests/memory/names.h"
#include "tests/model/bound_program.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using tests::memory_bench;

TEST(bound, reserved_stays_within_it_at_every_step_of_random_programs) {
  tests::seeds const wanted("bound", 150);
  std::uint64_t past = 0, near = 0;
  for (auto const seed : wanted) {
    tests::bound_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    past += p.past_the_first_term, near += p.near_it;
  }
  std::cout << wanted.count() << " programs; reserved was near the first term in " << near << " steps, past it in " << past << "\n";
  if (wanted.count() >= 100) {
    EXPECT_GT(near, wanted.count()) << "the bound is hardly ever felt";
  }
}

// Threads that take turns: what each is told to do, it does, and nobody else does anything.
class crew {
 public:
  explicit crew(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) threads_.emplace_back([this, i] { work(i); });
  }
  ~crew() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    news_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void run(std::size_t who, std::function<void()> const& what) {
    std::unique_lock lock(mutex_);
    whose_ = who, what_ = &what;
    news_.notify_all();
    news_.wait(lock, [&] { return !what_; });
  }

 private:
  void work(std::size_t me) {
    std::unique_lock lock(mutex_);
    for (;;) {
      news_.wait(lock, [&] { return over_ || (what_ && whose_ == me); });
      if (over_) return;
      (*what_)();
      what_ = nullptr;
      news_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable news_;
  std::size_t whose_ = 0;
  std::function<void()> const* what_ = nullptr;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

TEST(bound, holds_with_several_threads_that_give_back_each_others_blocks) {
  tests::seeds const wanted("bound_threads", 60);
  for (auto const seed : wanted) {
    std::size_t const threads = 2 + seed % 3;
    crew all(threads);
    tests::bound_program p(seed, threads, [&](std::size_t who, std::function<void()> const& step) { all.run(who, step); });
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; " << threads << " threads; replay with WEIR_TEST_SEED=" << seed;
  }
}

// Blocks replaced at random move handles all the time: after a while these are large, and few are moved; the bound holds all the way.
TEST(bound, holds_while_a_restless_programs_small_handles_become_large_ones) {
  tests::seeds const wanted("bound_restless", tests::sanitized ? 1 : 4);
  std::uint64_t moved_later = 0;
  for (auto const seed : wanted) {
    memory_bench bench({.devices = 1, .memory = 1 << 30, .how = simulated::running::stepped, .seed = 1}, options{.epsilon = 0.027});
    tests::counted_calls calls(*bench.control);
    auto& device = static_cast<memory::device_allocator&>(bench.on(0));
    clock::timeline* const lines[] = {&bench.stream(0), &bench.stream(0)};
    std::mt19937_64 random(seed);
    std::vector<void*> blocks(200);
    std::size_t most = 0, covered = 0;
    auto const one = [&] {
      auto const before = static_cast<std::size_t>(device.statistics().reserved_bytes.all.current);
      std::size_t const covered_before = device.covered();  // what the step itself hears of may be complete
      void*& b = blocks[random() % blocks.size()];
      if (b) device.deallocate(std::exchange(b, nullptr), nullptr, at);
      if (random() % 4 == 0) {
        for (clock::timeline* l : lines) ASSERT_TRUE(bench.clocks().synchronize(l->now()).ok());
      }
      double const doublings = static_cast<double>(random() % 5000) / 1000;  // from half a page to 16 pages
      auto const bytes = static_cast<std::size_t>(std::exp2(doublings) * page / 2) + 1;
      clock::timeline& line = *lines[seed % 2 && random() % 8 == 0];
      b = device.allocate(line, bytes, 0, at);
      driver::touch const all{reinterpret_cast<driver::address>(b), bytes, false};
      ASSERT_TRUE(bench.machine().enqueue(0, line.handle(), {&all, 1}, {[](void*) {}, nullptr, nullptr}).ok());
      memory_statistics const n = device.statistics();
      auto const reserved = static_cast<std::size_t>(n.reserved_bytes.all.current);
      most = std::max(most, static_cast<std::size_t>(n.allocated_bytes.all.current + n.pending_bytes.all.current));
      std::size_t const first = most + static_cast<std::size_t>(static_cast<double>(most) * 0.027) + page;
      if (reserved > before) covered = std::max({covered, covered_before, device.covered()});
      ASSERT_LE(reserved, std::max(first, covered)) << "replay with WEIR_TEST_SEED=" << seed;
    };
    auto const maps_of = [&](int pairs) {
      calls.forget();
      for (int i = 0; i < pairs && !HasFatalFailure(); ++i) one();
      return calls.of({driver::call::map});
    };
    (void)maps_of(tests::sanitized ? 3000 : 15000);
    auto const later = maps_of(tests::sanitized ? 500 : 3000);
    ASSERT_FALSE(HasFatalFailure());
    moved_later += later;
    EXPECT_EQ(device.validate(), std::vector<std::string>{});
    EXPECT_TRUE(bench.control->findings().empty());
    for (void* b : blocks) {
      if (b) device.deallocate(b, nullptr, at);
    }
  }
  std::cout << moved_later << " maps in the last 3000 pairs of " << wanted.count() << " programs\n";
  if (wanted.count() >= 4 && !tests::sanitized) {
    EXPECT_LT(moved_later, 150 * wanted.count()) << "three times that without large handles";
  }
}

TEST(bound, a_moved_handle_keeps_every_other_blocks_bytes_where_they_are) {
  memory_bench bench({.devices = 1, .memory = 64 << 20, .how = simulated::running::stepped, .seed = 1}, options{.epsilon = 0});
  auto& s = bench.stream(0);
  auto& device = bench.on(0);
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(static_cast<char*>(device.allocate(s, 16 * page, 0, at)));
  for (int i = 0; i < 8; i += 2) device.deallocate(blocks[static_cast<std::size_t>(i)], nullptr, at);
  ASSERT_TRUE(s.fence().ok());
  ASSERT_TRUE(bench.control->run());
  auto const reserved = device.statistics().reserved_bytes.all.current;
  auto const made = device.statistics().pages_mapped;
  void* const large = device.allocate(s, 60 * page, 0, at);
  EXPECT_LE(device.statistics().reserved_bytes.all.current, reserved + static_cast<std::int64_t>(page));
  EXPECT_LE(device.statistics().pages_mapped, made + 1) << "what lay free is moved, not made anew";
  for (std::size_t i = 1; i < 8; i += 2) EXPECT_TRUE(device.find(blocks[i])) << i;
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  EXPECT_TRUE(bench.control->findings().empty());
  device.deallocate(large, nullptr, at);
}

}  // namespace
}  // namespace weir
