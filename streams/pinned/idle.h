// When unused pinned memory is returned to the system, and which host memory is near a device.
// Threads: any.
#pragma once
#include <array>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::streams {

// Tells a caller when to look for idle memory: four times per idle period.
class idle_watch {
 public:
  explicit idle_watch(std::int64_t after_ns) noexcept : after_(after_ns) {}
  void set_after(std::int64_t ns, std::int64_t now) noexcept {  // 0: never. now: base::now_ns()
    last_.store(now, base::memory_order_relaxed);
    after_.store(ns, base::memory_order_relaxed);
  }
  std::int64_t after() const noexcept { return after_.load(base::memory_order_relaxed); }
  // Of concurrent callers, one gets true.
  bool is_time(std::int64_t now) noexcept {
    std::int64_t const after = after_.load(base::memory_order_relaxed);
    std::int64_t last = last_.load(base::memory_order_relaxed);
    return after != 0 && now - last >= after / 4 && last_.compare_exchange(last, now);
  }

 private:
  base::atomic<std::int64_t> after_, last_{0};
};

// Queried once per device: a driver needs microseconds to answer.
class near_nodes {
 public:
  int of(driver::driver& machine, int device) noexcept {
    if (static_cast<std::size_t>(device) >= known_.size()) return -1;
    auto& its = known_[static_cast<std::size_t>(device)];
    int node = its.load(base::memory_order_relaxed);
    if (node != unasked) return node;
    node = -1;
    if (!machine.simulated()) {
      try {
        if (auto const about = machine.info(device); about.ok()) node = about.value.numa_node;
      } catch (...) {}  // no memory for the device's name
    }
    its.store(node, base::memory_order_relaxed);
    return node;
  }
  void set(int device, int node) noexcept {
    known_[static_cast<std::size_t>(device)].store(node, base::memory_order_relaxed);
  }

 private:
  static constexpr int unasked = -2;
  struct asked : base::atomic<int> {
    asked() noexcept : base::atomic<int>(unasked) {}
  };
  std::array<asked, 64> known_;
};

}  // namespace weir::streams
