// A block found by one of its addresses: a block of the arena or a slot of a slab.
// Threads: valid while the heap's lock is held.
//
// Invariant: `live` is true exactly if deallocate would accept the block.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/blocks/region.h"
#include "runtime/memory/blocks/slab.h"

namespace weir::memory {

struct block_ref {
  piece* whole = nullptr;   // the block, or the slab's run
  slab* cut = nullptr;      // null: a block of the arena
  std::uint32_t index = 0;  // of the slot
  address start = 0;
  bool live = false;

  static block_ref find(region&, address) noexcept;

  template <class Do>
  void each_mark(Do act) const {  // each stream that the block is marked for
    if (cut) return cut->each_mark(index, act);
    for (clock::timeline* const t : whole->marks) act(t);
  }
  void unmark(clock::timeline& user) const noexcept {
    cut ? cut->unmark(index, user) : (void)std::erase(whole->marks, &user);
  }
};

}  // namespace weir::memory
