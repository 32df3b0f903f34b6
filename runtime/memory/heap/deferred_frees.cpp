// Deferred frees of a thread, which become pending all at once.
// Threads: as deferred_frees.h.
#include "runtime/memory/heap/deferred_frees.h"

#include <algorithm>

namespace weir::memory {

void deferred_frees::open() noexcept {
  if (taken_)
    head_.end(head_.get() & ~count_bits);  // none is here any more; how many were ever put in stays
  taken_ = false;
  most_.store(users_.one && spare_ ? limit_ : 0, base::memory_order_relaxed);
}

void deferred_frees::gather(users by, std::span<clock::stamp const> its, bool was_full) {
  set_revoked();
  if (was_full && users_.one == by.one && users_.other == by.other)
    limit_ = static_cast<std::uint8_t>(std::min<std::uint32_t>(limit_ * 2u, most_slots));
  users_ = {};  // if the next line throws, it takes none
  pending_queue::make(spare_);
  users_ = by;
  std::ranges::copy(its, stamps_.begin());
  open();
}

void deferred_frees::forget() noexcept {
  head_.end(0);
  bytes_.set(0);
  gone_bytes_ = 0;
  published_ = published_here_ = {};
  limit_ = first_limit;
  taken_ = false;
  users_ = {};
}

}  // namespace weir::memory
