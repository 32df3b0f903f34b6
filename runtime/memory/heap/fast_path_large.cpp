// Blocks above the slabs' sizes, without a locked instruction, on the thread that owns their heap's lock.
// Threads: the table's own. The locked path gets the rest, unchanged: nothing mapped fits, streams to wait
// for, a fence that is due, a wrong address.
#include "runtime/memory/heap/fast_path.h"
#include "runtime/memory/heap/stream_heap.h"
#include "runtime/memory/space/alloc_request.h"

namespace weir::memory {
namespace {

class owners_section {  // as section
 public:
  [[gnu::always_inline]] owners_section(stream_heap& m, thread_cache& c) noexcept
      : memory_(m), cache_(c), held_(m.lock.enter(c.own)) {
    if (!held_)
      return;
    before_ = m.blocks.free_blocks();
    if (!m.counts.sets_aside() && &c == m.sole && c.has_unpublished())
      c.publish(m.counts);
  }
  owners_section(owners_section const&) = delete;
  [[gnu::always_inline]] ~owners_section() {
    if (!held_)
      return;
    memory_.counts.free_blocks(static_cast<std::int64_t>(memory_.blocks.free_blocks()) -
                               static_cast<std::int64_t>(before_));
    if (memory_.counts.is_used_up()) [[unlikely]]
      cache_.publish(memory_.counts);
    base::biased_mutex::leave(cache_.own);
  }
  bool held() const noexcept { return held_; }

 private:
  stream_heap& memory_;
  thread_cache& cache_;
  bool const held_;
  std::size_t before_ = 0;
};

}  // namespace

void* allocate_large(allocation_table const& mine, clock::stream_clock const* stream, std::size_t bytes,
                     std::size_t alignment) noexcept try {
  auto const& e = mine.entries[allocation_table::bucket_of(stream)];
  if (e.stream != stream || bytes > arena::most_bytes) [[unlikely]]
    return nullptr;
  if (alignment && ((alignment & (alignment - 1)) || alignment > largest_alignment)) [[unlikely]]
    return nullptr;
  stream_heap& m = *e.memory;
  owners_section const hold(m, *e.cache);
  if (!hold.held())
    return nullptr;
  heap_block* const p = m.blocks.take(round_up(bytes, bins::unit), alignment);
  if (!p)
    return nullptr;
  p->home = m.home.load(base::memory_order_relaxed);
  p->requested = bytes;
  m.counts.allocated(observe::size_pool::large, p->bytes, bytes);
  return reinterpret_cast<void*>(p->at);  // NOLINT(performance-no-int-to-ptr)
} catch (std::bad_alloc const&) {
  return nullptr;
}

bool deallocate_large(thread_table const& mine, region const& in, address at) noexcept {
  stream_heap& m = *in.owner.load(base::memory_order_relaxed);
  auto const& e = mine.entries[m.bucket];
  if (e.memory != &m)
    return false;
  owners_section const hold(m, *e.cache);
  if (!hold.held())
    return false;
  heap_block* const p = in.table.starting_near(at);
  clock::stream_clock const* const home = m.home.load(base::memory_order_relaxed);
  if (!p || p->at != at || p->is != state::live || p->home != home || !p->users.empty())
    return false;
  if (m.index.size() > 1 && m.freed_since_fence + p->bytes >= m.fence_at_home_after())
    return false;
  m.freed_since_fence += p->bytes;
  m.counts.freed(observe::size_pool::large, p->bytes, p->requested);
  m.blocks.give(*p, home->number());
  return true;
}

}  // namespace weir::memory
