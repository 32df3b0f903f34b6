// What holds the memory of graphs: the program's objects, and the driver's graphs.
// Threads: any.
//
// Invariant: the graph_life of memory counts one for the program, until its last graph_hold ends, and one for each
// graph of the driver. At zero the memory is over. A graph of the driver has one of its own.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"

namespace weir::memory {

// How long the memory of graphs, or a graph of the driver, lives, for a later look at them.
class graph_life {
 public:
  bool is_over() const noexcept { return holders_.load(base::memory_order_acquire) == 0; }
  // The program has let it go, and launches may still run.
  bool is_ending() const noexcept {
    return left_.load(base::memory_order_acquire) && !unseen_.load(base::memory_order_relaxed);
  }
  void set_unseen() noexcept { unseen_.store(true, base::memory_order_relaxed); }  // the program has the graph alone
  void hold() noexcept { holders_.fetch_add(1, base::memory_order_relaxed); }
  // Threads: any, also inside the driver, with locks held
  void let_go() noexcept {
    base::no_switch const inside_the_driver;
    if (holders_.fetch_sub(1, base::memory_order_acq_rel) == 1)
      changed_.fetch_add(1, base::memory_order_release);
  }
  void leave() noexcept {  // the program's last reference goes
    base::no_switch const one_step;
    left_.store(true, base::memory_order_release);
    changed_.fetch_add(1, base::memory_order_release);
    let_go();
  }
  // The program's graphs that use the memory.
  void add_graph() noexcept { graphs_.fetch_add(1, base::memory_order_relaxed); }
  bool drop_graph() noexcept { return graphs_.fetch_sub(1, base::memory_order_acq_rel) == 1; }  // true: the last one
  // A launch by weir: all work of that stream so far. Without host memory it is not noted.
  void note_launch(clock::clocks const&, clock::stamp) noexcept;
  // So that they can be waited for when their streams are captured. At most one event record for each stream
  void fence_launches(clock::clocks const&) const noexcept;
  std::vector<clock::stamp> launches() const { return *launches_.lock(); }  // Throws: bad_alloc
  // Counts those of this process that began to end, or are over.
  static std::uint64_t changed() noexcept { return changed_.load(base::memory_order_acquire); }

 private:
  static inline constinit base::atomic<std::uint64_t> changed_{0};
  base::atomic<int> holders_{1}, graphs_{0};
  base::atomic<bool> left_{false}, unseen_{false};
  base::guarded<std::vector<clock::stamp>> launches_;  // the newest of each stream that may still run
};

// The memory of one graph, or of graphs that never run at the same time, on all devices.
class graph_hold {
 public:
  graph_hold() : life_(std::make_shared<graph_life>()) {}
  ~graph_hold() { life_->leave(); }
  graph_hold(graph_hold const&) = delete;
  std::shared_ptr<graph_life> const& life() const noexcept { return life_; }

 private:
  std::shared_ptr<graph_life> const life_;
};
using graph_holder = std::shared_ptr<graph_hold const>;

// Which memory the captures of a runtime use, where the program says so. A part of the runtime.
class graph_choices {
 public:
  using filter = std::function<bool(CUstream_st*)>;
  explicit graph_choices(weir::runtime::impl& r) : machine_(r.machine()) {}

  void declare(std::uint64_t capture, graph_holder);  // Throws: bad_alloc
  // The same of a capture that begin() begins and whose number it returns. No call chooses for that capture
  // before it is declared.
  // Blocks: while another one begins. Throws: bad_alloc, and what begin() throws
  template <class Begin>
  void declare_as_it_begins(Begin const& begin, graph_holder h) {
    base::lock_guard const hold(lock_);
    declared_[begin()] = std::move(h);
  }
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
