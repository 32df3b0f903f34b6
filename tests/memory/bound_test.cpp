// The bound on reserved memory at every step of random programs; see bound_program.h. Seeds as
// tests/support/seeds.h says.
// Threads: one.
#include <gtest/gtest.h>

#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"
#include "tests/model/bound_program.h"
#include "tests/model/width_program.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using tests::memory_bench;

TEST(bound, reserved_stays_within_it_at_every_step) {
  tests::seeds const wanted("bound", 150);
  std::uint64_t past = 0, near = 0, compared = 0;
  for (auto const seed : wanted) {
    tests::bound_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    past += p.past_the_first_term, near += p.near_it, compared += p.unreclaimable_compared;
  }
  std::cout << wanted.count() << " programs; reserved was near the first term in " << near << " steps, past it in "
            << past << "; what is covered was compared " << compared << " times\n";
  if (wanted.count() >= 100) {
    EXPECT_GT(near, wanted.count()) << "the bound is hardly ever felt";
    EXPECT_GT(compared, wanted.count());
  }
}

// Few blocks of many sizes: each free block keeps part of a handle at either end.
TEST(bound, a_program_that_had_to_pass_it_wastes_less_from_then_on) {
  double worst = 0, sum = 0;
  int const seeds = tests::sanitized ? 4 : 12;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    memory_bench bench(
        simulated{.devices = 1, .memory = 1 << 30, .schedule = simulated::scheduling::stepped, .seed = seed},
        options{.widest_epsilon = 0});
    auto& home = bench.stream(0);
    auto& memory = bench.on(0);
    std::minstd_rand random(seed);
    std::vector<void*> blocks(24);
    for (int i = 0; i < 1500; ++i) {
      void*& one = blocks[random() % blocks.size()];
      if (one)
        memory.deallocate(one, nullptr, at);
      one = memory.allocate(home, (1 + random() % 200) * page, 0, at);
    }
    memory_statistics const n = memory.statistics();
    double const ratio =
        static_cast<double>(n.reserved_bytes.all.peak) / static_cast<double>(n.allocated_bytes.all.peak);
    worst = std::max(worst, ratio), sum += ratio;
    for (void* const b : blocks)
      memory.deallocate(b, nullptr, at);
    EXPECT_EQ(memory.validate(), std::vector<std::string>{});
  }
  std::cout << "reserved " << sum / seeds << " of what was live, at most " << worst << "\n";
  EXPECT_LT(sum / seeds, 1.055) << "with handles as large as before: 1.067";
}

// Small blocks of one size after another, of which some stay: their runs serve other sizes in whole cells. A
// block is at most a cell, so that every freed cell is long enough for the next size.
TEST(bound, small_blocks_keep_little_more_than_they_touch) {
  tests::seeds const wanted("small_bound", tests::sanitized ? 2 : 12);
  double worst = 0;
  std::size_t grown = 0;
  for (auto const seed : wanted) {
    memory_bench bench({.devices = 1, .memory = 256 << 20, .schedule = simulated::scheduling::stepped, .seed = seed});
    auto& home = bench.stream(0);
    auto& device = static_cast<memory::device_allocator&>(bench.on(0));
    std::mt19937_64 random(seed);
    std::map<std::uintptr_t, std::size_t> live;               // bytes, by address
    std::unordered_map<std::uintptr_t, std::size_t> touched;  // blocks, by cell
    std::size_t bytes = 0;
    auto const each_cell = [](std::uintptr_t at, std::size_t n, auto act) {
      for (std::uintptr_t c = at / memory::cell; c <= (at + n - 1) / memory::cell; ++c)
        act(c);
    };
    std::size_t const one_in = std::array{20, 100, 500}[seed % 3];
    std::size_t reserved = 0;
    for (int phase = 0; phase < 10; ++phase) {
      std::size_t const size = std::size_t{16} << random() % 10;
      std::size_t const n = (std::size_t{3} << 20) / (size + 100);
      for (std::size_t i = 0; i < n; ++i) {
        auto const p = reinterpret_cast<std::uintptr_t>(device.allocate(home, size, 0, at));
        std::size_t const now = device.reserved();
        if (now > std::exchange(reserved, now)) {
          // Each size may have a partly used run of its own, hence the constant.
          double const most = 1.1 * static_cast<double>(std::max(touched.size() * memory::cell, bytes)) + (5 << 18);
          worst = std::max(worst, static_cast<double>(now) / most), ++grown;
          ASSERT_LE(static_cast<double>(now), most) << "phase " << phase << ", " << size << " B, seed " << seed;
        }
        live[p] = size, bytes += size;
        each_cell(p, size, [&](std::uintptr_t c) { ++touched[c]; });
      }
      for (auto b = live.begin(); b != live.end();) {
        if (random() % one_in == 0) {
          ++b;
          continue;
        }
        device.deallocate(reinterpret_cast<void*>(b->first), nullptr, at);  // NOLINT(performance-no-int-to-ptr)
        bytes -= b->second;
        each_cell(b->first, b->second, [&](std::uintptr_t c) {
          if (--touched[c] == 0)
            touched.erase(c);
        });
        b = live.erase(b);
      }
      ASSERT_EQ(device.validate(), std::vector<std::string>{}) << "seed " << seed;
    }
    // NOLINT(performance-no-int-to-ptr)
    for (auto const& b : live)
      device.deallocate(reinterpret_cast<void*>(b.first), nullptr, at);
    (void)device.empty_cache();
    EXPECT_EQ(device.reserved(), 0u) << "seed " << seed;
  }
  std::cout << "memory grew " << grown << " times, to " << worst << " of the bound at most\n";
}

// Each stream borrows from those before it, and its freed memory waits for it.
TEST(bound, many_streams_in_turn_reserve_as_much_as_one) {
  memory_bench bench({.devices = 1, .memory = 256 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                     options{.epsilon = 0});
  auto& device = bench.on(0);
  std::vector<clock::stream_clock*> streams;
  for (int i = 0; i < 40; ++i)
    streams.push_back(&bench.stream(0));
  for (int round = 0; round < 4; ++round) {
    for (clock::stream_clock* const s : streams) {
      std::vector<void*> blocks;
      for (int i = 0; i < 8; ++i)
        blocks.push_back(device.allocate(*s, 8 * page, 0, at));
      for (void* const p : blocks)
        device.deallocate(p, nullptr, at);
      for (clock::stream_clock* const each : streams)
        ASSERT_TRUE(bench.clocks().synchronize(each->now()).ok());
    }
  }
  auto const n = device.statistics();
  EXPECT_LE(n.reserved_bytes.all.peak, static_cast<std::int64_t>((64 + 17) * page));
  EXPECT_EQ(n.pending_bytes.all.current, 0);
  EXPECT_EQ(static_cast<memory::device_allocator&>(device).unreclaimable(), 0u);
}

TEST(bound, widens_for_moves_and_narrows_for_room) {
  tests::seeds const wanted("width", tests::sanitized ? 3 : 12);
  int widened = 0, narrowed = 0;
  for (auto const seed : wanted) {
    tests::width_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    widened += p.widened, narrowed += p.narrowed;
  }
  std::cout << widened << " programs widened the bound, " << narrowed << " narrowed it again\n";
  if (wanted.count() >= 12) {
    EXPECT_GT(widened, 0);
    EXPECT_GT(narrowed, 0);
  }
}

// Threads that run one at a time, each when it has a task.
class crew {
 public:
  explicit crew(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      threads_.emplace_back([this, i] { work(i); });
  }
  ~crew() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    news_.notify_all();
    for (std::thread& t : threads_)
      t.join();
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
      if (over_)
        return;
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

TEST(bound, holds_with_threads_that_free_each_others_blocks) {
  tests::seeds const wanted("bound_threads", 60);
  for (auto const seed : wanted) {
    std::size_t const threads = 2 + seed % 3;
    crew all(threads);
    tests::bound_program p(seed, threads,
                           [&](std::size_t who, std::function<void()> const& step) { all.run(who, step); });
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; " << threads << " threads; replay with WEIR_TEST_SEED=" << seed;
  }
}

TEST(bound, a_moved_handle_keeps_the_bytes_of_other_blocks) {
  memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                     options{.epsilon = 0});
  auto& s = bench.stream(0);
  auto& device = bench.on(0);
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(static_cast<char*>(device.allocate(s, 16 * page, 0, at)));
  for (int i = 0; i < 8; i += 2)
    device.deallocate(blocks[static_cast<std::size_t>(i)], nullptr, at);
  ASSERT_TRUE(s.fence().ok());
  ASSERT_TRUE(bench.control->run());
  auto const reserved = device.statistics().reserved_bytes.all.current;
  auto const made = device.statistics().pages_mapped;
  void* const large = device.allocate(s, 60 * page, 0, at);
  EXPECT_LE(device.statistics().reserved_bytes.all.current, reserved + static_cast<std::int64_t>(page));
  EXPECT_LE(device.statistics().pages_mapped, made + 1) << "what lay free is moved, not made anew";
  for (std::size_t i = 1; i < 8; i += 2)
    EXPECT_TRUE(device.find(blocks[i])) << i;
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  EXPECT_TRUE(bench.control->findings().empty());
  device.deallocate(large, nullptr, at);
}

}  // namespace
}  // namespace weir
