// How much of a device may be reserved, from the counters of all heaps.
// Threads: as reserve_bound.h.
#include "runtime/memory/supply/reserve_bound.h"

#include <algorithm>

namespace weir::memory {
namespace {
constexpr std::size_t fetched_ahead = 8;  // heaps
}  // namespace

// All streams' counters, in one walk without a lock. What thread caches hold is counted as taken there; only
// among few streams are the caches asked, for that takes each memory's lock.
reserve_bound::usage reserve_bound::now() const {
  reserve_bound::usage n;
  std::size_t const all = heaps_.index.size();
  bool const few = all <= heap_index::few;
  for (std::size_t i = 0; i < all; ++i) {
    if (i + fetched_ahead < all)
      heaps_.index[i + fetched_ahead].prefetch_counts();
    stream_heap const& t = heaps_.index[i];
    if (t.pages_stay()) {  // none of them can go
      n.live += t.bytes_mapped();
      continue;
    }
    n.live += t.bytes_live();
    n.pending += t.bytes_pending();
    if (few)
      n.most_of_one = std::max(n.most_of_one, t.most_live());
  }
  if (!few)
    return n;
  auto const caches = heaps_.cached();
  n.live = std::max<std::int64_t>(0, n.live - caches.held_bytes),
  n.most_of_one = std::max<std::int64_t>(0, n.most_of_one - caches.held_bytes);
  n.pending += caches.waiting_bytes;
  return n;
}

// The first term of the bound. A device of one stream knows its peak;
// of several, what was live whenever one needed more.
std::size_t reserve_bound::most(reserve_bound::usage const& n, std::size_t asked) noexcept {
  most_live_.raise(static_cast<std::size_t>(std::max(n.most_of_one, n.live)));
  std::size_t const live = std::max(most_live_.load(), static_cast<std::size_t>(n.live + n.pending) + asked);
  return live + static_cast<std::size_t>(static_cast<double>(live) * of_.epsilon);
}

}  // namespace weir::memory
