// One stream replaces blocks at random until moves have bought a wider bound. Then room is asked for: by a limit,
// by a request that does not fit, or by another process. Or the driver does not say what is free. A pool with a
// limit buys no width.
// Threads: one. The seed chooses sizes, epsilon, the way room is asked for, and the machine's schedule.
//
// Bound: reserved <= max((1 + e) x most in use + c, covered), wherever reserved rises. e: widest_epsilon while
// nothing asks for room, else epsilon. c: two pages. Most in use: the sum of live blocks, which nothing else uses.
#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/heap/thread_caches.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class width_program {
 public:
  explicit width_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 29),
        epsilon_(0.005 * static_cast<double>(1 + below(4))),
        widest_(0.1 + 0.05 * static_cast<double>(below(4))),
        bench_({.devices = 1, .memory = capacity, .schedule = simulated::scheduling::seeded, .seed = seed + 1},
               options{.epsilon = epsilon_, .widest_epsilon = widest_}),
        line_(bench_.stream(0)),
        blocks_(24 + below(40)) {}

  verdict run() {
    auto const how = static_cast<asks>(below(6));
    if (how == asks::pool)
      use_pool();
    replace(steps);
    auto const width = device().statistics().bound_width;
    widened = width > 0;
    if (how == asks::pool && width)
      wrong_.note(check::invariants, "moves in a pool with a limit bought " + std::to_string(width) + " B");
    ask(how);
    end();
    return wrong_;
  }
  bool widened = false, narrowed = false;

 private:
  static constexpr std::size_t capacity = 256 << 20, page = 64 << 10;
  static constexpr int steps = 2500;
  static constexpr source_location at{"a program", "width_program.h", 1};
  enum class asks : std::uint8_t { nobody, limit, request, other_process, refused_query, pool };
  struct block {
    void* at = nullptr;
    std::size_t bytes = 0;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_.on(0)); }

  void use_pool() {
    pool_ = &device().make_pool("limited", capacity);
    entered_ = memory::thread_caches::enter(*pool_);
  }
  void replace(int times) {
    for (int i = 0; i < times && wrong_.ok(); ++i) {
      block& b = blocks_[below(blocks_.size())];
      give(b);
      take(b, page / 2 + below(24 * page));
      if (below(8) == 0)
        (void)bench_.clocks().synchronize(line_.now());
    }
  }
  void take(block& b, std::size_t bytes) {
    std::size_t const rounded = memory::round_up(bytes, 512), before = device().reserved();
    most_ = std::max(most_, live_ + rounded);
    try {
      b = {device().allocate(line_, bytes, 0, at), rounded};
    } catch (out_of_memory const&) {
      if (!limited_)
        throw;
      return;  // live blocks keep parts of pages
    }
    live_ += rounded;
    if (device().reserved() > before)
      look(device().reserved());
  }
  void give(block& b) {
    if (!b.at)
      return;
    device().deallocate(b.at, nullptr, at);
    live_ -= b.bytes;
    b = {};
  }
  std::size_t within(double share) const {
    return most_ + static_cast<std::size_t>(static_cast<double>(most_) * share) + 2 * page;
  }
  void look(std::size_t reserved) {
    if (reserved <= within(tight_ ? epsilon_ : widest_))
      return;
    std::size_t const covered = device().unreclaimable();
    if (reserved > covered)
      wrong_.note(check::invariants, "reserved rose to " + std::to_string(reserved) + ", " + std::to_string(most_) +
                                         " were in use at most, and " + std::to_string(covered) + " are covered" +
                                         (tight_ ? ", while room is asked for" : ""));
  }

  void ask(asks how) {
    auto const before = device().statistics().bound_width;
    switch (how) {
      case asks::nobody:
      case asks::pool: return;
      case asks::limit:
        limited_ = true;
        device().set_limit((1 + below(2)) * std::max(device().unreclaimable(), within(epsilon_)));
        break;
      case asks::refused_query: bench_.control->fail_call("memory", 1, driver::code::failed); break;
      case asks::request:
        try {
          device().deallocate(device().allocate(line_, capacity - page, 0, at), nullptr, at);
          wrong_.note(check::answers, "more was allocated than there is");
        } catch (out_of_memory const&) {}
        break;
      case asks::other_process: {
        auto const free = bench_.machine().memory(0).value.free;
        bench_.control->consume_memory(0, free - std::min(free, capacity / 16));
        break;
      }
    }
    tight_ = how == asks::limit || how == asks::other_process;  // else moves may buy a width anew
    if (how == asks::limit || how == asks::request)
      look_narrow();
    replace(how == asks::limit ? steps : steps / 4);
    narrowed = before > 0 && device().statistics().bound_width == 0;
  }
  void look_narrow() {
    if (auto const width = device().statistics().bound_width)
      wrong_.note(check::invariants, "the bound is wider by " + std::to_string(width) + " B when room is asked for");
  }
  void end() {
    for (auto const& f : bench_.control->findings())
      wrong_.note(check_of(f), f);
    for (auto const& w : device().validate())
      wrong_.note(check::invariants, w);
    for (block& b : blocks_)
      give(b);
    (void)bench_.clocks().synchronize(line_.now());
    if (pool_) {
      memory::thread_caches::leave(entered_);
      device().end_pool(*pool_);
    }
    (void)device().empty_cache();
    if (auto const left = device().reserved())
      wrong_.note(check::census, std::to_string(left) + " B stay reserved when all was given back");
  }

  std::mt19937_64 random_;
  double const epsilon_, widest_;
  memory_bench bench_;
  clock::stream_clock& line_;
  std::vector<block> blocks_;
  memory::memory_pool* pool_ = nullptr;
  std::uint64_t entered_ = 0;
  std::size_t live_ = 0, most_ = 0;  // bytes
  bool tight_ = false;               // room is asked for
  bool limited_ = false;
  verdict wrong_;
};

}  // namespace weir::tests
