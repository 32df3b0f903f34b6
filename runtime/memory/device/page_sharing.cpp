// Which streams share pages, and their allocations from them.
// Threads: as page_sharing.h.
#include "runtime/memory/device/page_sharing.h"

#include <algorithm>

#include "runtime/memory/device/searches.h"

namespace weir::memory {

std::size_t page_sharing::most_with_pages() const noexcept {
  std::size_t const limit = of_.counts.limit();
  std::size_t const all = limit ? limit : of_.space.info().total_memory;
  return std::max<std::size_t>(of_.streams_with_pages, all / part_of_device / of_.space.page_bytes());
}

bool page_sharing::serves(memory_pool& pool, clock::stream_clock& home) {
  std::size_t const heaps = heaps_.index.size();
  if (heaps < of_.streams_with_pages || of_.deterministic || pool.rules().pages_stay) [[likely]]
    return false;
  stream_heap const* const own = heaps_.if_made(home, pool);
  if (own && own->bytes_mapped())
    return false;
  // The handles of shared pages are not open to readers that this stream alone has, in whichever pool.
  if (heaps_.has_own_readers(home))
    return false;
  std::uint32_t const taken = home.count_shared();
  if (taken < busy)
    return true;
  if (heaps < most_with_pages())
    return false;
  // It has a heap already, without memory: it inherits none.
  if (own)
    return true;
  // Pages that another stream left cost nothing. They are looked for now and then only, because all heaps are.
  if (taken % busy)
    return true;
  stream_heap const* const left_to_it = heaps_.inherited(home, pool);
  return !left_to_it;
}

void* page_sharing::take(memory_pool& pool, alloc_request const& r) {
  for (;;) {
    stream_heap& all = heaps_.shared(pool);
    session in(all);
    // Unless the heap has left the pool before it was locked.
    if (heaps_.serves(in, heaps_.shared_home(), pool))
      return in.take_for(r.home, r);
  }
}

void* page_sharing::take_after_a_miss(memory_pool& pool, alloc_request const& r) {
  stream_heap& all = heaps_.shared(pool);
  heap_stay in_it;
  {
    session const in(all);
    if (!heaps_.serves(in, heaps_.shared_home(), pool))
      return nullptr;
    in_it = heap_stay(in);
  }
  bool const came_free = of_.polls && completion_.poll(all, asked_a_miss) > 0;
  if (came_free) {
    if (void* const p = take(pool, r))
      return p;
  }
  // Made before there is a block that a lack of host memory could lose.
  slab::spare_note spare = slab::make_note();
  alloc_request const for_all{all.home(), r.bytes, r.alignment, r.size_class, r.rounded, r.at};
  void* out = nullptr;
  if (driver::status const s = growth_.grow(all, for_all, out); !s.ok()) {
    of_.note_status(s);
    return nullptr;
  }
  session(all).give_to(r.home, out, std::move(spare));
  return out;
}

}  // namespace weir::memory
