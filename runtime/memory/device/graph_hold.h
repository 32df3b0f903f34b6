// What holds the memory of graphs: the program's objects, and the driver's graphs.
// Threads: any.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"

namespace weir::memory {

// The memory of one graph, or of graphs that never run at the same time, on all devices. It is over with the last
// reference, which may go on any thread, inside the driver, with locks held.
class graph_hold {
 public:
  graph_hold() : over_(std::make_shared<base::atomic<bool>>(false)) {}
  ~graph_hold() {
    base::no_switch const inside_the_driver;
    over_->store(true, base::memory_order_release);
    ended_.fetch_add(1, base::memory_order_release);
  }
  graph_hold(graph_hold const&) = delete;
  std::shared_ptr<base::atomic<bool> const> over() const noexcept { return over_; }
  static std::uint64_t ended() noexcept { return ended_.load(base::memory_order_acquire); }  // in this process

 private:
  static inline constinit base::atomic<std::uint64_t> ended_{0};
  std::shared_ptr<base::atomic<bool>> const over_;
};
using graph_holder = std::shared_ptr<graph_hold const>;

// Which memory the captures of a runtime use, where the program says so. A part of the runtime.
class graph_choices {
 public:
  using filter = std::function<bool(CUstream_st*)>;
  explicit graph_choices(weir::runtime::impl& r) : machine_(r.machine()) {}

  void declare(std::uint64_t capture, graph_holder);  // Throws: bad_alloc
  void forget(std::uint64_t capture) noexcept;
  // Captured streams of that device for which the filter is true. Returns: a number for remove(), after which the
  // filter is called no more. The filter is called with no lock but this object's own. Throws: bad_alloc
  std::uint64_t add(int device, filter, graph_holder);
  void remove(std::uint64_t) noexcept;
  graph_holder choose(std::uint64_t capture, clock::stream_clock&);  // null: nothing was said

 private:
  struct route {
    std::uint64_t number;
    int device;
    filter accepts;
    graph_holder memory;
  };
  driver::driver& machine_;
  base::mutex lock_;
  std::map<std::uint64_t, graph_holder> declared_;
  std::vector<route> routes_;  // the newest last
  std::uint64_t last_ = 0;
};

}  // namespace weir::memory
