// Deferred frees of a thread, which become pending all at once; and marks without the lock.
// Threads: as deferred_frees.h and device_allocator.h.
#include "runtime/memory/heap/deferred_frees.h"

#include <algorithm>

#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {

void deferred_frees::open() noexcept {
  if (std::exchange(taken_, false)) head_.end(head_.get() & ~count_bits);
  most_.store(user_ && spare_ ? limit_ : 0, base::memory_order_relaxed);
}

void deferred_frees::gather(clock::stream_clock const& user, std::uint64_t n, bool was_full, pending_queue& home) {
  set_revoked();
  if (was_full && user_ == &user) limit_ = static_cast<std::uint8_t>(std::min<std::uint32_t>(limit_ * 2u, most_slots));
  user_ = nullptr;
  home.make(spare_, user.id());
  user_ = &user, n_ = n;
  open();
}

void deferred_frees::forget() noexcept {
  head_.end(0);
  bytes_.set(0);
  gone_bytes_ = 0;
  published_ = published_here_ = {};
  limit_ = first_limit;
  taken_ = false;
  user_ = nullptr;
}

// Marks and marked blocks without the lock: a slot's first mark, if it has no note.
namespace {

struct slot_place {
  slab* in = nullptr;  // null: take the locked path
  std::uint32_t index = 0;
  bool starts = false;
  table_entry const* entry = nullptr;
};
slot_place live_slot(thread_table& mine, address a) noexcept {
  if (a - mine.last.base >= mine.last.bytes && !look_for_slots(mine, a)) return {};
  slab* const s = mine.last.in->table.slab_at(a);
  slot_place found;
  if (!s) return {};
  found.starts = s->starts(a - s->base, found.index);
  if (found.index >= s->slots || s->at(found.index) != slot::live) return {};
  found.entry = &mine.entries[s->bucket];
  if (found.entry->memory == s->owner) found.in = s;
  return found;
}

}  // namespace

bool fast_record_use(clock::stream_clock* user, void const* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds() || !user || mine.users[thread_table::user_of(user)] != user) return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  if (!at.in || &user->owner() != &at.in->owner->home.load(base::memory_order_acquire)->owner()) return false;
  slab::first_user* const users = at.in->users.load(base::memory_order_acquire);
  if (!users || (users[at.index].load(base::memory_order_relaxed) & slab::more)) return false;
  return user == at.entry->stream || at.in->add_first_user(users, at.index, *user);
}

void remember_user(clock::stream_clock& user) noexcept {
  thread_table& mine = thread_table::mine();
  if (mine.holds()) mine.users[thread_table::user_of(&user)] = &user;
}

bool fast_deallocate_marked(clock::stream_clock const* last_use, void* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds_fast()) return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  if (!at.in || !at.starts) return false;
  slot_byte& state = at.in->byte(at.index);
  slab::first_user* const users = at.in->users.load(base::memory_order_acquire);
  std::uintptr_t const known = users ? users[at.index].load(base::memory_order_relaxed) : 0;
  clock::stream_clock const* const user = slab::clock_of(known);
  if (!user || (known & slab::more) || (last_use && last_use != user && last_use != at.entry->stream)) return false;
  users[at.index].store(0, base::memory_order_relaxed);  // before another thread can get the slot
  if (at.entry->cache->give_used(user, *at.in, at.index, state,
                                 static_cast<std::uint8_t>(state.get() & ~slot_bits::noted)))
    return true;
  users[at.index].store(known, base::memory_order_relaxed);
  return false;
}

}  // namespace weir::memory
