// Blocks above the slabs' sizes, without a locked instruction, on the thread that owns their heap's lock.
// Threads: the table's own. The locked path gets the rest, unchanged: nothing mapped fits, streams to wait
// for, a fence that is due, a wrong address.
#include "runtime/memory/heap/fast_path.h"
#include "runtime/memory/heap/session.h"
#include "runtime/memory/space/alloc_request.h"

namespace weir::memory {
// As a session, for calls that change counts: the sole cache reports its own first, and again if its grant is
// used up.
class owner_session::counting {
 public:
  [[gnu::always_inline]] explicit counting(owner_session& in) noexcept
      : heap_(in.heap_), cache_(in.cache_), before_(in.heap_.blocks_.free_blocks()) {
    if (!heap_.counts_.sets_aside() && &cache_ == heap_.sole_ && cache_.has_unpublished())
      cache_.publish(heap_.counts_);
  }
  counting(counting const&) = delete;
  [[gnu::always_inline]] ~counting() {
    heap_.counts_.free_blocks(static_cast<std::int64_t>(heap_.blocks_.free_blocks()) -
                              static_cast<std::int64_t>(before_));
    if (heap_.counts_.is_used_up()) [[unlikely]]
      cache_.publish(heap_.counts_);
  }

 private:
  stream_heap& heap_;
  thread_cache& cache_;
  std::size_t const before_;
};

[[gnu::always_inline]] inline void* owner_session::take_large(std::size_t bytes, std::size_t alignment) {
  counting const counts(*this);
  heap_block* const p = heap_.blocks_.take(round_up(bytes, bins::unit), alignment);
  if (!p)
    return nullptr;
  p->home = heap_.home_.load(base::memory_order_relaxed);
  p->requested = bytes;
  heap_.counts_.allocated(observe::size_pool::large, p->bytes, bytes);
  return reinterpret_cast<void*>(p->at);  // NOLINT(performance-no-int-to-ptr)
}

[[gnu::always_inline]] inline bool owner_session::give_large(region const& in, address at) noexcept {
  counting const counts(*this);
  heap_block* const p = in.table.starting_near(at);
  clock::stream_clock const* const home = heap_.home_.load(base::memory_order_relaxed);
  // The table may name another block near there. Only a block of the home without marks is free at once.
  if (!p || p->at != at || p->is != state::live || p->home != home || !p->users.empty())
    return false;
  // A fence is due, which is a driver call.
  if (heap_.index_.size() > 1 && heap_.freed_since_fence_ + p->bytes >= heap_.fence_at_home_after())
    return false;
  heap_.freed_since_fence_ += p->bytes;
  heap_.counts_.freed(observe::size_pool::large, p->bytes, p->requested);
  heap_.blocks_.give(*p, home->number());
  return true;
}

void* allocate_large(allocation_table const& mine, clock::stream_clock const* stream, std::size_t bytes,
                     std::size_t alignment) noexcept try {
  auto const& e = mine.entries[allocation_table::bucket_of(stream)];
  if (e.stream != stream || bytes > arena::most_bytes) [[unlikely]]
    return nullptr;
  if (alignment && ((alignment & (alignment - 1)) || alignment > largest_alignment)) [[unlikely]]
    return nullptr;
  owner_session in(*e.memory, *e.cache);
  return in ? in.take_large(bytes, alignment) : nullptr;
} catch (std::bad_alloc const&) {
  return nullptr;
}

bool deallocate_large(thread_table const& mine, region const& in, address at) noexcept {
  stream_heap& m = *in.owner.load(base::memory_order_relaxed);
  auto const& e = mine.entries[m.bucket()];
  if (e.memory != &m)
    return false;
  owner_session its(m, *e.cache);
  return its && its.give_large(in, at);
}

}  // namespace weir::memory
