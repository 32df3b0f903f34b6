// Which host memory is near a device.
// Threads: any.
#pragma once
#include <array>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::streams {

// Queried once per device: a driver needs microseconds to answer.
class near_nodes {
 public:
  int of(driver::driver& machine, int device) noexcept {
    if (static_cast<std::size_t>(device) >= known_.size())
      return -1;
    auto& its = known_[static_cast<std::size_t>(device)];
    int node = its.load(base::memory_order_relaxed);
    if (node != unasked)
      return node;
    node = -1;
    if (!machine.simulated()) {
      try {
        if (auto const about = machine.info(device); about.ok())
          node = about.value.numa_node;
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
