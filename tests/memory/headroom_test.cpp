// memory_headroom: what it promises can be had, and no more. Random programs, by seed.
// Threads: each test's own; work runs on the machine's threads.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/support/seeds.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pool.h"
#include "weir/runtime.h"
#include "weir/share.h"
#include "weir/sim.h"

namespace weir {
namespace {

constexpr size_t step = 512;           // bytes: sizes of larger blocks are rounded up to it
constexpr size_t smallest = 32 << 10;  // bytes: of a block that headroom counts

// Allocates and frees at random, on a few streams, with marks and work.
class headroom_program {
 public:
  enum class among : bool { blocks, all };  // all: pools, graphs, exported buffers and readers, too
  explicit headroom_program(std::uint64_t seed, among what = among::blocks)
      : all_(what == among::all),
        random_(seed * 0x9e3779b97f4a7c15u + 1),
        machine_(drawn_machine()),
        own_(machine_, drawn_options()) {
    runtime_guard const in(own_);
    for (int i = 0, n = 1 + below(3); i < n; ++i)
      streams_.emplace_back();
    if (!all_ || !machine_.virtual_memory)
      return;
    for (int i = 0, n = 1 + below(3); i < n; ++i)
      pools_.push_back(std::make_unique<pool>(
          "one of some", pool_options{.limit = below(2) ? size_ / 4 + size_t(below(1 << 22)) : 0}));
  }
  ~headroom_program() {
    runtime_guard const in(own_);
    graphs_.clear();
    for (void* p : live_)
      deallocate(p);
    pools_.clear();
    streams_.clear();
  }
  void run() {
    runtime_guard const in(own_);
    for (int i = 0, n = 20 + below(200); i < n; ++i)
      step_once();
    stream_guard const on(streams_[static_cast<size_t>(below(static_cast<int>(streams_.size())))]);
    if (below(2))
      synchronize();
    std::optional<pool_guard> inside;
    if (!pools_.empty() && below(2)) {
      pool& p = any_pool();
      if (!p.is_asleep())
        inside.emplace(p);
    }
    auto const before = memory_stats();
    headroom const h = memory_headroom();
    auto const after = memory_stats();
    EXPECT_EQ(before.reserved_bytes.all.current, after.reserved_bytes.all.current);
    EXPECT_EQ(before.segment.all.allocated, after.segment.all.allocated);
    EXPECT_LE(h.largest, h.bytes);
    below(2) ? largest_is_exact(h) : bytes_can_be_had(h);
    EXPECT_EQ(own_.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }
  // One refused call is no reason to refuse a block that there is room for. Afterwards all memory can be had.
  void run_with_refusals() {
    runtime_guard const in(own_);
    if (!machine_.virtual_memory)
      return;  // other calls
    auto machine = simulation::of(own_);
    for (int i = 0, n = 20 + below(100); i < n; ++i)
      step_once();
    for (int i = 0; i < 20; ++i) {
      synchronize();
      headroom const h = memory_headroom();
      if (!h.largest)
        break;
      size_t const bytes = below(2) ? h.largest : 1 + random_() % h.largest;
      constexpr std::array calls{"create", "map", "grant", "unmap", "release"};
      char const* const call = calls[static_cast<size_t>(below(calls.size()))];
      auto const number = machine.fail_call(call, static_cast<std::uint64_t>(1 + below(4)));
      void* p = nullptr;
      try {
        p = allocate(bytes);
      } catch (out_of_memory const& e) {
        ADD_FAILURE() << call << " was refused once: " << e.report().text();
      } catch (driver_error const&) {}  // of the call that was refused
      machine.cancel_failure(number);
      if (p && below(2))
        deallocate(std::exchange(p, nullptr));
      if (p)
        live_.push_back(p);
    }
    for (void*& p : live_) {
      if (below(2))
        deallocate(std::exchange(p, nullptr));
    }
    empty_cache();
    bytes_can_be_had(memory_headroom());
    EXPECT_EQ(own_.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  simulated drawn_machine() {
    size_ = (below(2) ? 8_MiB : 40_MiB) + static_cast<size_t>(below(1 << 21));
    limited_ = below(3) != 0;
    return {.devices = all_ ? 2 : 1, .memory = limited_ ? 64_MiB : size_, .virtual_memory = below(6) != 0};
  }
  options drawn_options() {
    options o;
    if (limited_)
      o.device_limit = size_;
    if (below(3) == 0)
      o.epsilon = 0;
    if (below(4) == 0)
      o.deterministic = true;
    if (below(4) == 0)
      o.device_waits = options::wait_policy::never;
    if (below(4) == 0)
      o.poll_on_miss = false;
    return o;
  }
  stream_ref any_stream() { return streams_[static_cast<size_t>(below(static_cast<int>(streams_.size())))]; }
  size_t size() { return static_cast<size_t>(1 + below(1 << (4 + below(19)))); }
  pool& any_pool() { return *pools_[static_cast<size_t>(below(static_cast<int>(pools_.size())))]; }
  void another_step() {
    try {
      switch (below(7)) {
        case 0:
        case 1: {
          pool& p = any_pool();
          if (!p.is_asleep())
            live_.push_back(p.allocate(any_stream(), size()));
          break;
        }
        case 2: below(2) ? (void)any_pool().sleep() : any_pool().wake(); break;
        case 3: {
          stream_ref const s = any_stream();
          graphs_.push_back(graph::capture(s, [&] {
            for (int i = 0, n = 1 + below(4); i < n; ++i) {
              void* const p = allocate(s, size());
              launch(
                  s, {writes(p)}, [](auto) {}, [] {});
              below(4) ? deallocate(p) : live_.push_back(p);
            }
          }));
          if (below(2))
            graphs_.back().launch(any_stream());
          break;
        }
        case 4:
          if (!graphs_.empty())
            graphs_.erase(graphs_.begin() + below(static_cast<int>(graphs_.size())));
          break;
        case 5: exportable_buffer(any_stream(), size() * 4); break;
        case 6:
          if (below(4) == 0)
            enable_peer_access(any_stream(), {1});
      }
    } catch (out_of_memory const&) {}
  }
  void step_once() {
    if (!pools_.empty() && below(3) == 0)
      return another_step();
    if (below(5) < 3) {
      try {
        live_.push_back(allocate(any_stream(), size()));
      } catch (out_of_memory const&) {}
    } else if (!live_.empty()) {
      size_t const i = static_cast<size_t>(below(static_cast<int>(live_.size())));
      void* const p = std::exchange(live_[i], live_.back());
      live_.pop_back();
      below(3) ? deallocate(p) : deallocate(any_stream(), p);
    }
    if (below(8) == 0)
      launch(
          any_stream(), {}, [](auto) {}, [] {});
  }
  void largest_is_exact(headroom const& h) {
    void* p = nullptr;
    if (h.largest) {
      EXPECT_NO_THROW(p = allocate(h.largest)) << h.largest;
      EXPECT_NE(p, nullptr);
      deallocate(p);
    }
    headroom const again = memory_headroom();
    void* more = nullptr;
    EXPECT_THROW(more = allocate(std::max(again.largest, smallest - step) + step), out_of_memory) << again.largest;
    deallocate(more);
  }
  // One largest block after another.
  void bytes_can_be_had(headroom const& h) {
    std::vector<void*> all;
    size_t had = 0;
    for (headroom now = h; now.largest; now = memory_headroom()) {
      void* p = nullptr;
      EXPECT_NO_THROW(p = allocate(now.largest)) << now.largest;
      if (!p)
        break;
      all.push_back(p);
      had += now.largest;
    }
    EXPECT_GE(had, h.bytes);
    EXPECT_LT(had, h.bytes + 2 * smallest * (all.size() + 1));  // smaller pieces at the ends of these
    for (void* p : all)
      deallocate(p);
  }

  bool const all_;
  std::mt19937_64 random_;
  size_t size_ = 0;  // bytes: of the limit, or of the device
  bool limited_ = false;
  simulated const machine_;  // drawn before the options, which depend on it
  runtime own_;
  std::vector<stream> streams_;
  std::vector<std::unique_ptr<pool>> pools_;
  std::vector<graph> graphs_;
  std::vector<void*> live_;
};

TEST(headroom, is_exact_for_one_thread) {
  for (std::uint64_t const seed : tests::seeds("headroom", 400)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    headroom_program(seed).run();
  }
}

TEST(headroom, is_exact_among_pools_graphs_and_exports) {
  for (std::uint64_t const seed : tests::seeds("headroom_among", 200)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    headroom_program(seed, headroom_program::among::all).run();
  }
}

// An allocation that its pool has room for takes the pages that another stream keeps, though none may move.
TEST(headroom, of_a_pool_is_had_while_others_fill_the_device) {
  for (bool const deterministic : {false, true}) {
    runtime own(simulated{.devices = 1, .memory = 64_MiB},
                options{.device_limit = 24_MiB, .deterministic = deterministic});
    runtime_guard const in(own);
    stream a, b;
    pool p("model", {.limit = 5_MiB});
    void* const small = p.allocate(a, 12'000);
    deallocate(allocate(b, 22_MiB));
    pool_guard const inside(p);
    stream_guard const on(a);
    headroom const h = memory_headroom();
    EXPECT_GT(h.largest, 3_MiB);
    void* all = nullptr;
    EXPECT_NO_THROW(all = allocate(h.largest)) << h.largest;
    deallocate(all), deallocate(small);
  }
}

TEST(headroom, is_had_though_a_call_is_refused) {
  for (std::uint64_t const seed : {5526u, 28251u, 36915u}) {  // an alias is not unmapped at the first attempt
    SCOPED_TRACE(seed);
    headroom_program(seed).run_with_refusals();
  }
  for (std::uint64_t const seed : tests::seeds("headroom_refused", 100)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    headroom_program(seed).run_with_refusals();
  }
}

}  // namespace
}  // namespace weir
