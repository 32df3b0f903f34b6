// How much of a device may be reserved: (1 + epsilon) x the most that was live.
// Threads: any. Among up to heap_index::few streams each heap's lock is taken in turn, for its caches.
#pragma once
#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class reserve_bound {
 public:
  reserve_bound(device_context& of, heap_table const& heaps) : of_(of), heaps_(heaps) {}

  struct usage {
    std::int64_t live = 0, most_of_one = 0, pending = 0, large = 0, large_blocks = 0;
  };  // bytes, and blocks
  usage now() const;
  // (1 + epsilon) x the most that was live, or will be in use with `asked` bytes more
  std::size_t most(usage const&, std::size_t asked) noexcept;
  void raise(std::size_t live) noexcept { most_live_.raise(live); }

  static constexpr std::size_t enough_to_judge = 32;  // pages: with less every program passes its bound
  // as in address_space::holdings; taken back when an emptied cache leaves too little to judge
  bool was_passed() const noexcept { return past_bound_.get(); }
  void set_passed(bool yes) noexcept { past_bound_.set(yes); }

 private:
  device_context& of_;
  heap_table const& heaps_;
  base::atomic<std::size_t> most_live_{0};  // bytes, ever: no reset of peaks touches it
  base::single_writer<bool> past_bound_;
};

}  // namespace weir::memory
