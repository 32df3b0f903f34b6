// A block back: collects the stamps of its users, frees or defers, fences when due.
// Threads: any. The block's heap is locked; fences, three driver calls each, are recorded after it. A free blocks
// only without host memory: then it waits for the block's users.
//
// Invariant: a free that throws has changed nothing.
#pragma once
#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class free_path {
 public:
  free_path(device_context& of, heap_table& heaps) : of_(of), heaps_(heaps) {}

  void deallocate(void*, clock::timeline* last_use, source_location);  // as allocator::deallocate
  void fence_what_came_free(clock::timeline& home) noexcept;  // as allocator::fence_what_came_free

 private:
  void take_back(void*, clock::timeline* last_use, source_location);  // Throws also: bad_alloc, unchanged
  void forget_user(void*, clock::timeline&) noexcept;      // what it did with the block is complete
  // a stream for which that block would have to wait; null: none
  clock::timeline* busy_user(void*, clock::timeline* last_use) const noexcept;
  void tell_freed(block_ref const&, clock::timeline& home, clock::timeline* last_use, source_location) const;

  device_context& of_;
  heap_table& heaps_;
};

}  // namespace weir::memory
