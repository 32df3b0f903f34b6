// Many threads, streams and devices at once on a machine run by threads, and no driver call under a lock that
// other threads need.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;

// A machine on which one chosen call does not return until the test allows it.
struct slow_call final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  void pause(weir::driver::call c) {
    std::unique_lock lock(mutex);
    if (armed != c)
      return;
    armed = weir::driver::call::any;
    entered = true;
    news.notify_all();
    released = news.wait_for(lock, std::chrono::seconds(20), [&] { return go; });
  }
  weir::driver::result<weir::driver::memory_handle> create(int device, std::size_t bytes) override {
    pause(weir::driver::call::create);
    return fault_injector::create(device, bytes);
  }
  weir::driver::status map(weir::driver::address a, std::size_t bytes, weir::driver::memory_handle h) override {
    pause(weir::driver::call::map);
    return fault_injector::map(a, bytes, h);
  }
  weir::driver::status unmap(weir::driver::address a, std::size_t bytes) override {
    pause(weir::driver::call::unmap);
    return fault_injector::unmap(a, bytes);
  }
  weir::driver::status grant(weir::driver::address a, std::size_t bytes, int device) override {
    pause(weir::driver::call::grant);
    return fault_injector::grant(a, bytes, device);
  }
  std::mutex mutex;
  std::condition_variable news;
  weir::driver::call armed = weir::driver::call::any;
  bool entered = false, go = false, released = false;
};

class memory_threads_slow : public ::testing::TestWithParam<weir::driver::call> {};

// A call of growth, of a move or of a release.
TEST_P(memory_threads_slow, one_streams_driver_call_delays_no_other) {
  slow_call* slow = nullptr;
  memory_bench bench({.devices = 1, .memory = 256 << 20}, options{.epsilon = 0},
                     [&](std::unique_ptr<driver::driver> m) {
                       auto made = std::make_unique<slow_call>(std::move(m));
                       slow = made.get();
                       return made;
                     });
  memory::allocator& d = bench.on(0);
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
  d.deallocate(d.allocate(a, 1 << 20, 0, at), nullptr, at);
  std::vector<void*> blocks;  // every other one is free: its handles move if no more are allowed
  for (int i = 0; i < 8; ++i)
    blocks.push_back(d.allocate(b, 8 << 20, 0, at));
  for (std::size_t i = 0; i < blocks.size(); i += 2)
    d.deallocate(blocks[i], nullptr, at);
  ASSERT_TRUE(bench.clocks().synchronize(b.now()).ok());
  {
    std::lock_guard lock(slow->mutex);
    slow->armed = GetParam();
  }
  void* missed = nullptr;
  std::thread miss([&] {
    if (GetParam() == weir::driver::call::unmap)
      (void)d.empty_cache();  // a move unmaps nothing
    else
      missed = d.allocate(a, 64 << 20, 0, at);
  });
  {
    std::unique_lock lock(slow->mutex);
    ASSERT_TRUE(slow->news.wait_for(lock, std::chrono::seconds(20), [&] { return slow->entered; }));
  }
  // Cached and uncached, small and large, on the other stream; cached on the very stream that misses; frees;
  // queries.
  for (std::size_t bytes : {100, 20'000, 1 << 20, 32 << 20})
    d.deallocate(d.allocate(b, bytes, 0, at), nullptr, at);
  void* const p = d.allocate(a, 1000, 0, at);
  EXPECT_TRUE(d.find(p));
  d.deallocate(p, nullptr, at);
  EXPECT_GT(d.statistics().reserved_bytes.all.current, 0);
  {
    std::lock_guard lock(slow->mutex);
    slow->go = true;
    slow->news.notify_all();
  }
  miss.join();
  EXPECT_TRUE(slow->released);
  d.deallocate(missed, nullptr, at);
  for (std::size_t i = 1; i < blocks.size(); i += 2)
    d.deallocate(blocks[i], nullptr, at);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}
INSTANTIATE_TEST_SUITE_P(calls, memory_threads_slow,
                         ::testing::Values(weir::driver::call::create, weir::driver::call::map,
                                           weir::driver::call::grant, weir::driver::call::unmap),
                         [](auto const& info) {
                           return std::string(weir::driver::call_names[static_cast<std::size_t>(info.param)]);
                         });

TEST(memory_threads, passed_blocks_keep_bytes_and_counters_exact) {
  constexpr int workers = 4, rounds = 300;
  memory_bench bench({.devices = 2, .memory = 48 << 20});
  struct block {
    unsigned char* at = nullptr;
    std::size_t bytes = 0;
    unsigned char value = 0;
    int device = 0;
    clock::stream_clock* last = nullptr;
  };
  std::mutex shelf_mutex;
  std::vector<block> shelf;
  std::vector<clock::stream_clock*> lines;
  for (int i = 0; i < workers; ++i)
    lines.push_back(&bench.stream(i % 2));
  std::atomic<int> wrong{0};
  auto const work = [&](int me) {
    std::mt19937_64 random(static_cast<std::uint64_t>(me) + 1);
    clock::stream_clock& line = *lines[static_cast<std::size_t>(me)];
    memory::allocator& d = bench.on(line.device());
    for (int i = 0; i < rounds; ++i) {
      block b;
      {
        std::lock_guard lock(shelf_mutex);
        if (!shelf.empty() && random() % 2) {
          std::swap(shelf[random() % shelf.size()], shelf.back());
          if (shelf.back().device == line.device())
            b = shelf.back(), shelf.pop_back();
        }
      }
      if (b.at) {  // of another stream: order this one behind its writer, check it, free it from here
        d.record_use(b.at, line, at);
        if (!line.wait(b.last->now()).ok())
          ++wrong;
        struct look {
          block what;
          std::atomic<int>* wrong;
        };
        driver::touch const t{reinterpret_cast<driver::address>(b.at), b.bytes, false};
        auto const s = bench.machine().enqueue(line.device(), line.handle(), {&t, 1},
                                               {[](void* p) {
                                                  auto const* const l = static_cast<look*>(p);
                                                  for (std::size_t k = 0; k < l->what.bytes; ++k) {
                                                    if (l->what.at[k] != l->what.value) {
                                                      ++*l->wrong;
                                                      return;
                                                    }
                                                  }
                                                },
                                                [](void* p) { delete static_cast<look*>(p); }, new look{b, &wrong}});
        if (!s.ok())
          ++wrong;
        d.deallocate(b.at, nullptr, at);
        continue;
      }
      b.bytes = 1 + (random() % 3 ? random() % 3000 : random() % 1'500'000);
      b.value = static_cast<unsigned char>(random());
      b.device = line.device();
      b.last = &line;
      try {
        b.at = static_cast<unsigned char*>(d.allocate(line, b.bytes, 0, at));
      } catch (out_of_memory const&) {
        continue;
      }
      if (!bench.machine().fill(line.device(), line.handle(), b.at, b.value, 1, b.bytes).ok())
        ++wrong;
      std::lock_guard lock(shelf_mutex);
      shelf.push_back(b);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i)
    threads.emplace_back(work, i);
  for (auto& t : threads)
    t.join();
  for (auto* l : lines)
    ASSERT_TRUE(bench.clocks().synchronize(l->now()).ok());
  EXPECT_EQ(wrong.load(), 0);
  for (block const& b : shelf)
    bench.on(b.device).deallocate(b.at, nullptr, at);
  for (int d = 0; d < 2; ++d) {
    bench.on(d).empty_cache();
    EXPECT_EQ(bench.on(d).validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.on(d).statistics().reserved_bytes.all.current, 0);
    EXPECT_EQ(bench.on(d).statistics().allocation.all.current, 0);
  }
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
