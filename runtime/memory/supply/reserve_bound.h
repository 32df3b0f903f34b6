// How much of a device may be reserved: (1 + epsilon) x the most that was live. And how many handles may move
// to stay below it: they have a credit that grows with the most that was live and with the allocations.
// Threads: any. Among up to heap_index::few streams each heap's lock is taken in turn, for its caches.
#pragma once
#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class reserve_bound {
 public:
  static constexpr std::size_t moves_at_first = 200;
  reserve_bound(device_context& of, heap_table const& heaps) : of_(of), heaps_(heaps) {}

  struct usage {
    std::int64_t live = 0, most_of_one = 0, pending = 0;  // bytes
    std::int64_t taken = 0;                               // large blocks, ever
  };
  usage now() const;
  // (1 + epsilon) x the most that was live, or will be in use with `asked` bytes more. Under a limit epsilon
  // counts as 0, so that default options fit where the most careful do.
  std::size_t most(usage const&, std::size_t asked) noexcept;
  // What may be reserved instead of a move. 0: a move has credit, or this would come near what there is.
  std::size_t instead_of_a_move(usage const&, std::size_t bound) const;
  void moved() noexcept { moves_.fetch_add(1, base::memory_order_relaxed); }
  void raise(std::size_t live) noexcept { most_live_.raise(live); }

 private:
  device_context& of_;
  heap_table const& heaps_;
  base::atomic<std::size_t> most_live_{0};  // bytes, ever: no reset of peaks touches it
  base::atomic<std::size_t> moves_{0};      // ever
};

}  // namespace weir::memory
