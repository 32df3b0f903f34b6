// The lock-free paths where a thread's table does not name the place: a search, and blocks with marks.
// Threads: as fast_path.h.
#include "runtime/memory/heap/fast_path.h"

#include "runtime/memory/heap/stream_heap.h"
#include "runtime/memory/space/mapped_spaces.h"

namespace weir::memory {

bool look_for_slots(thread_table& mine, address a) noexcept {
  region const* const r = mapped_spaces::find(a);
  // Below `runs` lie blocks, if the region has a part for runs.
  if (!r || (a < r->runs && r->runs < r->base + r->bytes))
    return false;
  // runs begin at a page
  address const table_begin = round_down(r->base, granule);
  address const from = r->runs < r->base + r->bytes ? r->runs : table_begin;
  mine.last = {from, r->base + r->bytes - from, r->table.wholes() + (from - table_begin) / granule, r};
  return a - from < mine.last.bytes;
}

bool deallocate_after_search(thread_table& mine, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  region const* const r = mapped_spaces::find(a);
  if (!r)
    return false;
  // In the part for blocks. The table of slabs is not read: each block would touch another cache line of it.
  if (a < r->runs && r->runs < r->base + r->bytes) {
    mine.blocks = {r->base, r->runs - r->base, r};
    return deallocate_large(mine, *r, a);
  }
  return look_for_slots(mine, a) && deallocate_of(mine, p);
}

// Marks and marked blocks without the lock: a slot's first two marks, if it has no note.
namespace {

struct slot_place {
  slab* in = nullptr;  // null: take the locked path
  std::uint32_t index = 0;
  bool starts = false;
  table_entry const* entry = nullptr;
};
// The live slot around the address, if this thread has the entry of its heap.
slot_place live_slot(thread_table& mine, address a) noexcept {
  if (a - mine.last.base >= mine.last.bytes && !look_for_slots(mine, a))
    return {};
  slab* const s = mine.last.in->table.slab_at(a);
  slot_place found;
  if (!s)
    return {};
  found.starts = s->starts(a - s->base, found.index);
  if (found.index >= s->slots || s->at(found.index) != slot::live)
    return {};
  found.entry = &mine.entries[s->bucket];
  if (found.entry->memory == s->owner)
    found.in = s;
  return found;
}

}  // namespace

bool fast_record_use(clock::stream_clock* user, void const* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds() || !user || !mine.has_user(user))
    return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  // A stream of another runtime takes the locked path.
  if (!at.in || &user->owner() != &at.in->owner->home().owner())
    return false;
  slab::first_users* const users = at.in->users.load(base::memory_order_acquire);
  // A slot with a note needs the lock.
  if (!users || (users[at.index].front().load(base::memory_order_relaxed) & slab::more))
    return false;
  // The heap's own stream needs no mark.
  return user == at.entry->stream || at.in->add_first_user(users, at.index, *user);
}

void remember_user(clock::stream_clock& user) noexcept {
  thread_table& mine = thread_table::mine();
  if (mine.holds())
    mine.put_user(&user);
}

bool fast_deallocate_marked(clock::stream_clock const* last_use, void* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds_fast())
    return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  if (!at.in || !at.starts)
    return false;
  slot_byte& state = at.in->byte(at.index);
  slab::first_users* const all = at.in->users.load(base::memory_order_acquire);
  if (!all)
    return false;
  auto& [first, second] = all[at.index];
  std::uintptr_t const known = first.load(base::memory_order_relaxed);
  std::uintptr_t const known_too = second.load(base::memory_order_relaxed);
  deferred_frees::users by{slab::clock_of(known), slab::clock_of(known_too)};
  if (!by.one || (known & slab::more))
    return false;
  if (last_use && last_use != by.one && last_use != by.other && last_use != at.entry->stream) {
    if (by.other)  // that would be a third
      return false;
    by.other = last_use;
  }
  first.store(0, base::memory_order_relaxed);  // before another thread can get the slot
  second.store(0, base::memory_order_relaxed);
  if (at.entry->cache->give_used(by, *at.in, at.index, state,
                                 static_cast<std::uint8_t>(state.get() & ~slot_bits::noted)))
    return true;
  first.store(known, base::memory_order_relaxed);  // not freed: the locked path reads the marks
  second.store(known_too, base::memory_order_relaxed);
  return false;
}

}  // namespace weir::memory
