// The lock-free paths: allocate, free and mark without a lock or a driver call.
// Threads: any. Null or false: nothing has changed, and the caller takes the locked path.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/memory/heap/thread_caches.h"

namespace weir::memory {

// For blocks that are no slots (fast_path_large.cpp), on the thread that owns their heap's lock.
void* allocate_large(allocation_table const&, clock::stream_clock const*, std::size_t bytes,
                     std::size_t alignment) noexcept;
bool deallocate_large(thread_table const&, region const&, address) noexcept;

// The functions named `noted` below are for callers that write to the history. The other fast ones return
// null or false while there is a history.
[[gnu::always_inline]] inline void* allocate_of(allocation_table const& mine, clock::stream_clock const* stream,
                                                std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes > size_classes::largest) [[unlikely]]
    return allocate_large(mine, stream, bytes, alignment);
  auto const& e = mine.entries[allocation_table::bucket_of(stream)];
  if (e.stream != stream) [[unlikely]]
    return nullptr;
  std::size_t const lines = size_classes::lines_of(bytes);
  if (alignment) [[unlikely]] {
    if ((alignment & (alignment - 1)) ||
        (size_classes::bytes(static_cast<int>(lines / slab::lines_a_size)) & (alignment - 1)))
      return nullptr;
  }
  return e.cache->take(lines, bytes);
}

// as deallocate_of; remembers where the block was found, for the next block near it
bool deallocate_after_search(thread_table&, void*) noexcept;
// Ensures: true if the address lies in the range that is remembered now
bool look_for_slots(thread_table&, address) noexcept;

[[gnu::always_inline]] inline bool deallocate_of(thread_table& mine, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  auto const& near = mine.last;
  if (a - near.base >= near.bytes) {
    // Not where the last slot lay: where the last block lay, or anywhere.
    return a - mine.blocks.base < mine.blocks.bytes ? deallocate_large(mine, *mine.blocks.in, a)
                                                    : deallocate_after_search(mine, p);
  }
  slab const* s = base::load_acquire(near.slabs[(a - near.base) / granule]);
  std::uint32_t i;
  // Its granule is not one slab's: the cell may be, or a block lies there.
  if (!s) [[unlikely]] {
    if (!(s = near.in->table.slab_in_cell(a)))
      return deallocate_large(mine, *near.in, a);
  }
  if (!s->starts(a - s->base, i)) [[unlikely]]
    return false;
  slot_byte& state = s->byte(i);
  std::uint8_t const was = state.get();
  // Live and without a note; `exact`, the usual one, is both.
  if (was != slot_bits::exact && (was & slot_bits::in_use) != static_cast<std::uint8_t>(slot::live)) [[unlikely]]
    return false;
  auto const& e = mine.entries[s->bucket];
  return e.memory == s->owner && e.cache->give(*s, state, was, a);
}

// Used by `user`: its work so far comes before the block's next use.
inline bool deallocate_used(thread_table& mine, clock::stream_clock const* user, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  if (a - mine.last.base >= mine.last.bytes && !look_for_slots(mine, a)) [[unlikely]]
    return false;
  slab* const s = mine.last.in->table.slab_at(a);
  std::uint32_t i;
  if (!s || !s->starts(a - s->base, i)) [[unlikely]]
    return false;
  slot_byte& state = s->byte(i);
  std::uint8_t const was = state.get();
  if ((was & slot_bits::in_use) != static_cast<std::uint8_t>(slot::live)) [[unlikely]]
    return false;
  auto const& e = mine.entries[s->bucket];
  if (e.memory != s->owner) [[unlikely]]
    return false;
  return user == e.stream ? e.cache->give(*s, state, was, a) : e.cache->give_used({user}, *s, i, state, was);
}

[[gnu::always_inline]] inline void* fast_allocate(clock::stream_clock const* stream, std::size_t bytes,
                                                  std::size_t alignment) noexcept {
  allocation_table const& mine = allocation_table::mine();
  return mine.holds_fast() ? allocate_of(mine, stream, bytes, alignment) : nullptr;
}
[[gnu::always_inline]] inline bool fast_deallocate(void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds_fast() && deallocate_of(mine, p);
}
inline bool fast_deallocate_used(clock::stream_clock const* user, void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds_fast() && deallocate_used(mine, user, p);
}
// record_stream, and the free of a block that one or two others used, by its marks and last_use (null: no other).
bool fast_record_use(clock::stream_clock* user, void const* p) noexcept;
// From now on that stream may mark blocks without the lock, while this thread's table holds.
void remember_user(clock::stream_clock& user) noexcept;
bool fast_deallocate_marked(clock::stream_clock const* last_use, void* p) noexcept;

inline void* fast_allocate_noted(clock::stream_clock const* stream, std::size_t bytes, std::size_t alignment) noexcept {
  allocation_table const& mine = allocation_table::mine();
  return mine.holds() ? allocate_of(mine, stream, bytes, alignment) : nullptr;
}
// Of a registered stream that was just found not to be captured.
inline void* fast_allocate_asked(clock::stream_clock const& stream, std::size_t bytes, std::size_t alignment) noexcept {
  return fast_allocate_noted(allocation_table::key_of(stream), bytes, alignment);
}
inline bool fast_deallocate_noted(void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds() && deallocate_of(mine, p);
}

}  // namespace weir::memory
