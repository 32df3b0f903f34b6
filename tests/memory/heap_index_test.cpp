// Many streams with a little free memory each: a stream finds what one has left without a look at the others.
// Seeds as tests/support/seeds.h says.
// Threads: one, but in the last test.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"
#include "tests/support/heap_probe.h"
#include "tests/support/memory_bench.h"
#include "tests/support/sanitized.h"
#include "weir/memory.h"
#include "weir/stream.h"

namespace weir {
namespace {

using memory::device_allocator;
using tests::memory_bench;

simulated machine_of(std::size_t memory, std::uint64_t seed) {
  return {.devices = 1, .memory = memory, .schedule = simulated::scheduling::stepped, .seed = seed};
}

// Streams are registered, allocate, mark, free and end. Now and then all work completes.
class crowd_program {
 public:
  explicit crowd_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 3), bench_(machine_of(1 << 30, seed), options{.epsilon = 0}) {
    for (std::size_t i = 0, n = 17 + below(150); i < n; ++i)
      lines_.push_back(&new_line());
  }
  void run() {
    for (int i = 0; i < 300; ++i) {
      step();
      if (i % 10 == 0)
        complete();
      std::size_t const reserved = device().reserved();
      if (reserved > bound())
        most_unreclaimable_ = std::max(most_unreclaimable_, device().unreclaimable());
      ASSERT_LE(reserved, std::max(bound(), most_unreclaimable_)) << "step " << i << " among " << lines_.size();
      if (i % 20 == 0) {
        ASSERT_EQ(device().validate(), std::vector<std::string>{}) << "step " << i;
      }
    }
    while (!live_.empty())
      give(live_.size() - 1);
    complete();
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_GT(device().empty_cache(), 0u);
    EXPECT_EQ(device().reserved(), 0u);
    EXPECT_EQ(bench_.control->findings(), std::vector<std::string>{});
  }

 private:
  struct block {
    void* at;
    std::size_t bytes;
    clock::stream_clock* home;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  device_allocator& device() { return static_cast<device_allocator&>(bench_.on(0)); }
  clock::stream_clock& new_line() {
    bench_.core.open(0, "test", at);
    auto const handle = bench_.machine().create_stream(0, driver::stream_kind::independent, 0).value;
    return bench_.clocks().make(0, handle, below(3) ? clock::life::own : clock::life::foreign);
  }
  // In use is live memory, and memory freed since all work was last complete. Runs and caches of small blocks
  // are pages of their own.
  std::size_t bound() const { return most_in_use_ + page * (18 + small_); }
  void complete() {
    ASSERT_TRUE(bench_.control->run());
    for (clock::stream_clock* const s : lines_)
      ASSERT_TRUE(bench_.clocks().synchronize(s->now()).ok());
    given_ = 0;
  }
  void step() {
    clock::stream_clock*& line = lines_[below(lines_.size())];
    switch (below(10)) {
      case 0:
        if (line->alive() == clock::life::foreign) {
          std::erase_if(live_, [&](block const& b) { return b.home == line && (give_back(b), true); });
          bench_.clocks().retire(*line);
          line = &new_line();
        }
        return;
      case 1:
        ASSERT_TRUE(bench_.machine().enqueue(0, line->handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
        return;
      case 2:
      case 3:
      case 4:
      case 5:
        if (!live_.empty())
          return give(below(live_.size()));
        [[fallthrough]];
      default: {
        bool const slot = below(8) == 0;
        std::size_t const bytes = slot ? 1 + below(8000) : (2 + below(12)) * page / 2 + below(2) * 512;
        small_ += slot ? 2 : 0;  // pages: a run, and the rest of one
        most_in_use_ = std::max(most_in_use_, in_use_ + given_ + memory::round_up(bytes, 512));
        live_.push_back({device().allocate(*line, bytes, 0, at), bytes, line});
        in_use_ += memory::round_up(bytes, 512);
      }
    }
  }
  void give(std::size_t i) {
    std::swap(live_[i], live_.back());
    give_back(live_.back());
    live_.pop_back();
  }
  void give_back(block const& b) {
    if (below(4) == 0)
      device().record_use(b.at, *lines_[below(lines_.size())], at);
    device().deallocate(b.at, nullptr, at);
    std::size_t const bytes = memory::round_up(b.bytes, 512);
    in_use_ -= bytes, given_ += bytes;
  }

  std::mt19937_64 random_;
  memory_bench bench_;
  std::vector<clock::stream_clock*> lines_;
  std::vector<block> live_;
  std::size_t in_use_ = 0, given_ = 0, most_in_use_ = 0, most_unreclaimable_ = 0, small_ = 0;
};

// Streams come and go, and the index agrees with every heap.
TEST(heap_index, many_streams_stay_within_the_bound) {
  tests::seeds const wanted("heap_index", tests::sanitized ? 10 : 60);
  for (auto const seed : wanted) {
    crowd_program p(seed);
    p.run();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "replay with WEIR_TEST_SEED=" << seed;
  }
}

// Each other stream has a block, and less than a free page.
std::uint64_t steps_of_misses(int others) {
  memory_bench bench(machine_of(std::size_t{64} << 30, 1));
  auto& device = static_cast<device_allocator&>(bench.on(0));
  clock::stream_clock &a = bench.stream(0), &b = bench.stream(0);
  for (int i = 0; i < others; ++i)
    (void)device.allocate(bench.stream(0), 2 * page, 0, at);
  void* const p = device.allocate(a, 64 << 20, 0, at);
  device.deallocate(p, nullptr, at);
  EXPECT_TRUE(bench.control->run());
  EXPECT_TRUE(bench.clocks().synchronize(a.now()).ok());
  std::size_t const reserved = device.reserved();
  std::uint64_t const before = device.steps();
  for (int i = 0; i < 6; ++i) {
    void* const q = device.allocate(b, 64 << 20, 0, at);
    EXPECT_EQ(q, p) << "what is complete elsewhere serves";
    device.deallocate(q, nullptr, at);
  }
  EXPECT_EQ(device.reserved(), reserved);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  return device.steps() - before;
}
TEST(heap_index, a_miss_does_not_cost_more_with_empty_streams) {
  std::uint64_t const few = steps_of_misses(20), many = steps_of_misses(1000);
  EXPECT_EQ(few, many);
  EXPECT_LE(many, 6u * 4);
}

TEST(heap_index, that_list_a_memory_wrongly_are_named_by_validate) {
  memory_bench bench(machine_of(1 << 30, 1));
  auto& device = static_cast<device_allocator&>(bench.on(0));
  clock::stream_clock &a = bench.stream(0), &b = bench.stream(0);
  void* const p = device.allocate(a, 8 << 20, 0, at);
  void* const q = device.allocate(a, 4 << 20, 0, at);
  memory::stream_heap& m = *device.addresses().find(p)->owner.load();
  device.deallocate(q, nullptr, at);
  using memory::heap_index;
  auto const relist = [&](heap_index::rows now) { memory::heap_probe::relist(m, now); };
  auto const expect = [&](char const* what) {
    auto const wrong = device.validate();
    ASSERT_EQ(wrong.size(), 1u);
    EXPECT_NE(wrong[0].find(what), std::string::npos) << wrong[0];
  };
  heap_index::rows const right = memory::quiet_session(m).listed();
  memory::heap_probe::say_listed(m, right | heap_index::of_size(std::size_t{1} << 30));
  expect("its row in the heap index differs from its own copy");
  memory::heap_probe::say_listed(m, right);
  relist(right & ~heap_index::at_least(4 << 20));
  expect("a size below the arena's largest free or pending block");
  relist(right & ~heap_index::whole_handle);
  expect("misses a free block that may hold a whole handle");
  relist(right | heap_index::waits);
  expect("the heap index is wrong about pending blocks");
  relist(right);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});

  ASSERT_TRUE(bench.machine().enqueue(0, b.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  device.record_use(p, b, at);
  device.deallocate(p, nullptr, at);
  ASSERT_EQ(device.validate(), std::vector<std::string>{});
  heap_index::rows const waiting = memory::quiet_session(m).listed();
  relist(waiting & ~heap_index::waits);
  expect("the heap index is wrong about pending blocks");
  relist(waiting & ~heap_index::at_least(8 << 20));
  expect("a size below the arena's largest free or pending block");
  relist(waiting);
}

// Streams of one thread each, and streams of all: blocks left by one serve the others.
TEST(heap_index, are_listed_right_after_threads_have_lent) {
  runtime own{simulated{.devices = 1, .memory = 256 << 20}};
  auto& device = own.get().part<memory::device_memory>().on(0);
  std::deque<stream> streams;
  {
    runtime_guard const in{own};
    for (int i = 0; i < 40; ++i)
      streams.emplace_back();
  }
  std::vector<std::thread> threads;
  for (unsigned me = 0; me < 4; ++me) {
    threads.emplace_back([&, me] {
      runtime_guard const in{own};
      std::mt19937_64 random(me + 1);
      std::vector<void*> mine;
      for (int i = 0; i < (tests::sanitized ? 600 : 3000); ++i) {
        if (mine.size() < 6 && random() % 2) {
          std::size_t const bytes = random() % 4 ? (64 << 10) + random() % (3 << 20) : 1 + random() % 4000;
          mine.push_back(allocate(streams[random() % 2 ? me : random() % streams.size()], bytes));
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          deallocate(mine.back());
          mine.pop_back();
        }
      }
      for (void* const p : mine)
        deallocate(p);
    });
  }
  for (std::thread& t : threads)
    t.join();
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  (void)device.empty_cache();
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
