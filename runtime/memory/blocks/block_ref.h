// A block found by one of its addresses: a block of the arena or a slot of a slab.
// Threads: valid while the heap's lock is held.
//
// Invariant: `live` is true exactly if deallocate would accept the block.
#pragma once
#include <cstdint>

#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/blocks/region.h"
#include "runtime/memory/blocks/slab.h"

namespace weir::memory {

struct block_ref {
  heap_block* block = nullptr;  // the block, or the slab's run
  slab* in_slab = nullptr;      // null: a block of the arena
  std::uint32_t index = 0;      // of the slot
  address start = 0;
  bool live = false;

  static block_ref find(region&, address) noexcept;

  template <class Do>
  void each_user(Do act) const {  // each stream that the block is marked for
    if (in_slab)
      return in_slab->each_user(index, act);
    block->users.each(act);
  }
  void forget_user(clock::stream_clock& user) const noexcept {
    in_slab ? in_slab->forget_user(index, user) : block->users.forget(user);
  }
};

}  // namespace weir::memory
