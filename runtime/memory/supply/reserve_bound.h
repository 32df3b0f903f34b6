// How much of a device may be reserved: (1 + epsilon) x the most that was live, and a width above it that moves buy.
// Threads: any. Among up to heap_index::few streams each heap's lock is taken in turn, for its caches.
//
// A move of a handle costs some 30 us, and an allocation without one less than 1. Each move that the bound causes is a
// debt of allocations; allocations pay it off. A debt of `patience` moves widens the bound by a step, where the device
// has room. The bound narrows to epsilon when room is asked for: a limit, an allocation that would fail, less than
// an eighth of the device free. Counts and bytes decide, no clock.
#pragma once
#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class reserve_bound {
 public:
  reserve_bound(device_context& of, heap_table const& heaps) : of_(of), heaps_(heaps) {}

  struct usage {
    std::int64_t live = 0, most_of_one = 0, pending = 0;  // bytes. most_of_one: the highest peak of a heap
    std::int64_t allocations = 0;                         // of large blocks, by the heaps that there are
  };
  usage now() const;
  // (1 + epsilon) x the most that was live, or will be in use with `asked` bytes more
  std::size_t most(usage const&, std::size_t asked) noexcept;
  void raise(std::size_t live) noexcept { most_live_.raise(live); }

  // Bytes past most() that the pool's growth may take now. No driver call.
  std::size_t width(memory_pool const& pool) const { return may_widen(pool) ? width() : 0; }
  std::size_t width() const;  // of pools without a limit
  // Asks the driver whether the width may grow by `bytes` and leave the margin free.
  bool leaves_margin(std::size_t bytes);
  // A growth has ended, for which so many handles moved that the bound would not let it make.
  void learn(usage const&, memory_pool const&, std::size_t moves);
  bool narrow() noexcept;  // Returns: whether it was wider than epsilon

 private:
  bool may_widen(memory_pool const&) const;

  device_context& of_;
  heap_table const& heaps_;
  base::atomic<std::size_t> most_live_{0};   // bytes, ever: no reset of peaks touches it
  mutable base::mutex lock_{base::quiet};    // held for these members alone
  std::size_t step_ = 0;                     // of the widths
  std::int64_t allocations_ = 0, debt_ = 0;  // at the last growth; in allocations
};

}  // namespace weir::memory
