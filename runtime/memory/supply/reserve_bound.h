// How much of a device may be reserved: (1 + epsilon) x the most that was live.
// Threads: any. Among up to heap_index::few streams each heap's lock is taken in turn, for its caches.
#pragma once
#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class reserve_bound {
 public:
  reserve_bound(device_context& of, heap_table const& heaps) : of_(of), heaps_(heaps) {}

  struct usage {
    std::int64_t live = 0, most_of_one = 0, pending = 0;
  };  // bytes
  usage now() const;
  // (1 + epsilon) x the most that was live, or will be in use with `asked` bytes more
  std::size_t most(usage const&, std::size_t asked) noexcept;
  void raise(std::size_t live) noexcept { most_live_.raise(live); }

 private:
  device_context& of_;
  heap_table const& heaps_;
  base::atomic<std::size_t> most_live_{0};  // bytes, ever: no reset of peaks touches it
};

}  // namespace weir::memory
