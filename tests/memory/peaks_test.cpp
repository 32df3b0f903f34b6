// The peaks of a device with one stream on which one thread allocates equal the program's own notes, however
// blocks are allocated and freed: by the thread cache, with the lock, by a mix of both, by other threads, for
// another stream. Seeds as tests/support/seeds.h says.
// Threads: one; some blocks are given back by a second one while the first waits.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "runtime/core/parts.h"
#include "runtime/memory/blocks/slab.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/heap/fast_path.h"
#include "streams/stream/context.h"
#include "tests/support/seeds.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace weir {
namespace {

struct block {
  void* at = nullptr;
  std::size_t bytes = 0, rounded = 0;
  bool small = false;
};

// What is live now and the most that was live, as the program knows it: small blocks, large blocks, all.
class notes {
 public:
  void took(block const& b) { move(b, 1); }
  void gave(block const& b) { move(b, -1); }
  // The most that was mapped and free. Growth is mapped before its block is allocated.
  void saw(memory_statistics const& n) { free_.to(n.reserved_bytes.all.current - bytes_[2].now); }
  void reset() {
    for (auto* of : {&blocks_, &bytes_, &requested_}) {
      for (level& l : *of)
        l.most = l.now;
    }
    free_.most = free_.now;
  }
  void compare(memory_statistics const& n) const {
    same(n.allocation, blocks_, "allocation");
    same(n.allocated_bytes, bytes_, "allocated_bytes");
    same(n.requested_bytes, requested_, "requested_bytes");
  }
  void compare_active(memory_statistics const& n) const {  // where no block is pending
    same(n.active, blocks_, "active");
    same(n.active_bytes, bytes_, "active_bytes");
  }
  // With several threads: the peak is at least what was live at once, and at most that plus what their caches
  // hold.
  void bound(memory_statistics const& n, std::int64_t caches) const {
    auto const between = [&](statistic const& is, level const& must, std::int64_t below, char const* what) {
      EXPECT_GE(is.peak, must.most - below) << what;
      EXPECT_LE(is.peak, must.most + caches) << what;
      EXPECT_LE(is.peak, n.reserved_bytes.all.peak) << what;
    };
    between(n.allocated_bytes.all, bytes_[2], 0, "allocated_bytes");
    between(n.requested_bytes.all, requested_[2], caches, "requested_bytes");
    EXPECT_LE(n.cached_bytes.all.peak, n.reserved_bytes.all.peak);
  }
  // Of all blocks only: within a call, memory belongs to a large block before part of it becomes slots.
  void compare_free(memory_statistics const& n) const {
    EXPECT_EQ(n.cached_bytes.all.current, free_.now);
    EXPECT_EQ(n.cached_bytes.all.peak, free_.most);
  }
  void bound_free(memory_statistics const& n, std::int64_t caches) const {
    EXPECT_GE(n.cached_bytes.all.peak, free_.most - caches);
  }

 private:
  struct level {
    std::int64_t now = 0, most = 0;
    void to(std::int64_t value) { most = std::max(most, now = value); }
  };
  using by_pool = std::array<level, 3>;
  void move(block const& b, std::int64_t sign) {
    for (std::size_t const p : {b.small ? std::size_t{0} : 1, std::size_t{2}}) {
      blocks_[p].to(blocks_[p].now + sign);
      bytes_[p].to(bytes_[p].now + sign * static_cast<std::int64_t>(b.rounded));
      requested_[p].to(requested_[p].now + sign * static_cast<std::int64_t>(b.bytes));
    }
  }
  static void same(statistic_by_size const& is, by_pool const& must, char const* what) {
    statistic const* const of[] = {&is.small, &is.large, &is.all};
    for (std::size_t p = 0; p < 3; ++p) {
      EXPECT_EQ(of[p]->current, must[p].now) << what << " now, pool " << p;
      EXPECT_EQ(of[p]->peak, must[p].most) << what << " peak, pool " << p;
    }
  }
  by_pool blocks_, bytes_, requested_;
  level free_;
};

class program {
 public:
  enum class frees : std::uint8_t { at_home, for_another_stream_too };
  program(std::uint64_t seed, frees how) : how_(how), random_(seed) {}
  // calls by path; blocks allocated by one path and freed by the other
  std::size_t quick = 0, locked = 0, crossed = 0;

  void run(std::size_t steps) {
    std::size_t want = 1 + random_() % 300;
    for (std::size_t i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      if (random_() % 200 == 0)
        want = 1 + random_() % 300;
      if (live_.size() < want ? random_() % 4 != 0 : random_() % 4 == 0)
        take();
      else if (!live_.empty())
        give(random_() % live_.size());
      if (random_() % 300 == 0)
        seldom();
    }
    look();
    while (!live_.empty())
      give(random_() % live_.size());
    look();
  }

 private:
  memory::allocator& device() { return own_.get().part<memory::device_memory>().on(0); }
  clock::stream_clock& line() { return streams::clock_of(s_); }

  void take() {
    static constexpr std::size_t sizes[] = {1, 16, 100, 112, 500, 512, 1000, 1500, 5000, 30'000, 32'768};
    std::size_t const bytes = random_() % 12 == 0 ? (33 << 10) + random_() % (1 << 20)
                              : random_() % 3     ? sizes[random_() % std::size(sizes)]
                                                  : 1 + random_() % 4000;
    std::size_t const alignment = random_() % 16 ? 0 : std::size_t{16} << random_() % 6;
    bool const with_lock = random_() % lock_one_in_ == 0;
    block b{nullptr, bytes, 0, false};
    bool const was_quick = !with_lock && (b.at = memory::fast_allocate(&line(), bytes, alignment));
    if (!b.at)
      b.at = device().allocate(line(), bytes, alignment, source_location::current());
    ++(was_quick ? quick : locked);
    int const c = memory::size_classes::of(bytes, std::max<std::size_t>(alignment, 1));
    b.small = c >= 0;
    if (b.small) {
      b.rounded = memory::size_classes::bytes(c);
    } else {
      // A rest too small to be a block of its own stays with its block.
      auto const now = static_cast<std::size_t>(device().statistics().allocated_bytes.large.current);
      b.rounded = now - large_;
      large_ = now;
    }
    quickly_.push_back(was_quick);
    live_.push_back(b);
    notes_.saw(device().statistics());  // first with what was live before
    notes_.took(b);
    notes_.saw(device().statistics());
  }

  void give(std::size_t i) {
    std::swap(live_[i], live_.back());
    std::swap(quickly_[i], quickly_.back());
    block const b = live_.back();
    bool const was_quick = quickly_.back();
    live_.pop_back(), quickly_.pop_back();
    if (!b.small)
      large_ -= b.rounded;
    clock::stream_clock* const user =
        how_ == frees::for_another_stream_too && random_() % 3 == 0 ? &streams::clock_of(user_) : nullptr;
    bool gone = false;
    if (random_() % lock_one_in_)
      gone = user ? memory::fast_deallocate_used(user, b.at) : memory::fast_deallocate(b.at);
    if (!gone)
      device().deallocate(b.at, user, source_location::current());
    ++(gone ? quick : locked);
    crossed += gone != was_quick && b.small;
    notes_.gave(b);
    notes_.saw(device().statistics());
  }

  void seldom() {
    switch (random_() % 6) {
      case 0: look(); break;
      case 1: device().empty_cache(); break;
      case 2:
        device().reset_peak();
        notes_.reset();
        break;
      case 3: lock_one_in_ = random_() % 3 ? 1 + random_() % 8 : 1000; break;
      case 4: from_another_thread(); break;
      default: EXPECT_EQ(device().validate(), std::vector<std::string>{});
    }
    notes_.saw(device().statistics());
  }
  // The other thread only queries, or has blocks of its own and frees some of the first thread's.
  void from_another_thread() {
    bool const allocates = random_() % 2;
    std::thread([&] {
      runtime_guard const here_too(own_);
      if (!allocates)
        return void(device().empty_cache());
      for (std::size_t i = 0; i < 300; ++i)
        random_() % 2 || live_.empty() ? take() : give(random_() % live_.size());
      notes_.bound(device().statistics(), 2 * most_in_a_cache);
    }).join();
    notes_.saw(device().statistics());
    if (!allocates)
      return look();
    if (how_ == frees::at_home)
      notes_.bound_free(device().statistics(), 2 * most_in_a_cache);
    notes_.bound(device().statistics(), 2 * most_in_a_cache);
    device().reset_peak();
    notes_.reset();
  }
  // a cache's first slots of each size
  static constexpr std::int64_t most_in_a_cache =
      std::int64_t{memory::thread_cache::most_bytes} + (1 << 20) + memory::deferred_frees::most_bytes;

  void look() {
    memory_statistics const n = device().statistics();
    notes_.compare(n);
    if (how_ == frees::at_home)
      notes_.compare_active(n), notes_.compare_free(n);
    EXPECT_LE(n.cached_bytes.all.peak, n.reserved_bytes.all.peak);
    EXPECT_LE(n.requested_bytes.all.peak, n.allocated_bytes.all.peak);
    EXPECT_LE(n.active_bytes.all.peak, n.reserved_bytes.all.peak);
  }

  runtime own_{simulated{.devices = 1, .memory = std::size_t{1} << 30}};
  runtime_guard in_{own_};
  stream s_, user_;  // the second has no memory on this device
  frees const how_;
  std::minstd_rand random_;
  std::vector<block> live_;
  std::vector<char> quickly_;
  notes notes_;
  std::size_t large_ = 0;  // bytes of live large blocks
  std::size_t lock_one_in_ = 4;
};

void run(program::frees how) {
  std::size_t crossed = 0, quick = 0;
  for (std::uint64_t const seed : tests::seeds("peaks", 40)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    program p(seed, how);
    p.run(3000);
    crossed += p.crossed, quick += p.quick;
    if (testing::Test::HasFailure())
      return;
  }
  // A checker observes each call, so no call takes the fast path.
  if (!base::has_process_wide_fence() || std::getenv("WEIR_TEST_SEED") || std::getenv("WEIR_CHECK_RACES"))
    return;
  EXPECT_GT(quick, 1000u);
  EXPECT_GT(crossed, 1000u);
}

TEST(peaks, are_the_programs_own_on_every_path) {
  run(program::frees::at_home);
}

TEST(peaks, are_the_programs_own_beside_pending_blocks) {
  run(program::frees::for_another_stream_too);
}

}  // namespace
}  // namespace weir
