// A block found by one of its addresses.
// Threads: as block_ref.h.
#include "runtime/memory/blocks/block_ref.h"

namespace weir::memory {

block_ref block_ref::find(region& r, address a) noexcept {
  block_ref found;
  if (slab* const s = r.table.slab_at(a)) {
    std::uint32_t const i = s->index(a);
    // The rest of the run behind the last slot, or a slot with a cell that went back to the arena.
    if (i >= s->slots || s->has_gone(i))
      return found;
    found.block = s->run;
    found.in_slab = s;
    found.index = i;
    found.start = s->start(i);
    found.live = s->at(i) == slot::live;
  } else if (heap_block* const p = r.table.covering(a)) {
    found.block = p;
    found.start = p->at;
    found.live = p->is == state::live;
  }
  return found;
}

}  // namespace weir::memory
