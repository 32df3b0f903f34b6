// Outboxes on their way home: what a thread gathered becomes pending, all of it at once.
// Threads: as deferred_frees.h and device_allocator.h.
#include "runtime/memory/heap/deferred_frees.h"

#include <algorithm>

#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {

void outbox::open() noexcept {
  if (std::exchange(taken_, false)) head_.end(head_.get() & ~count_bits);
  most_.store(user_ && room_ ? limit_ : 0, base::memory_order_relaxed);
}

void outbox::gather(clock::timeline const& user, std::uint64_t n, bool was_full, pending_blocks& home) {
  set_shut();
  if (was_full && user_ == &user) limit_ = static_cast<std::uint8_t>(std::min<std::uint32_t>(limit_ * 2u, most_slots));
  user_ = nullptr;
  home.make(room_, user.id());
  user_ = &user, n_ = n;
  open();
}

void outbox::forget() noexcept {
  head_.end(0);
  bytes_.set(0);
  gone_bytes_ = 0;
  told_ = told_here_ = {};
  limit_ = first_limit;
  taken_ = false;
  user_ = nullptr;
}

// A block that is the first for its stream and stamp goes home by itself, as it would without an outbox;
// what follows it is gathered.
bool device_allocator::post(stream_memory& m, thread_cache& c, slabs::taken b, clock::timeline& user, clock::stamp s,
                            bool& due) noexcept try {
  if (s.stream != user.id() || !open(m, c)) return false;
  slot_byte& state = b.from->byte(b.index);
  auto const was = static_cast<std::uint8_t>(state.get() & ~slot_bits::noted);
  std::size_t const size = b.from->size, requested = b.from->requested(b.index);
  auto const put = [&] {  // who has the lock has the slot until it is home
    base::single_writer<std::int64_t> known_here;
    if (!c.out.put(&user, *b.from, b.index, state, was, known_here, c.home)) return false;
    c.out.note_told(static_cast<std::int64_t>(size));
    m.counts.held(observe::size_pool::small, size, requested);
    // with its free: a snapshot shows it as pending from here on
    tell_held(observe::action::held, b.from->start(b.index), size, s.stream);
    if (b.from->marks_room) b.from->marks_room[b.index].store(0);
    return true;
  };
  if (put()) return true;
  bool const follows = c.out.is_for(s), was_full = c.out.count() != 0;
  m.held_since_fence += send_home(m, c);
  if (m.held_since_fence >= fence_after(m, 8)) due = true, m.held_since_fence = 0;
  c.out.gather(user, s.n, follows && was_full, m.pending);
  return follows && put();
} catch (std::bad_alloc const&) {
  return false;
}

std::size_t device_allocator::send_home(stream_memory& m, thread_cache& c) noexcept {
  auto const slots = c.out.slots();
  if (slots.empty()) return 0;
  auto const bytes = static_cast<std::size_t>(c.out.held_bytes());
  clock::stamp const s = c.out.stamp();
  auto const untold = c.out.untold_here();
  if (untold.slots) m.counts.sent_home(untold.slots, untold.bytes);
  for (slabs::taken const b : slots) m.small.hold(*b.from, b.index);
  m.pending.push(c.out.room(), slots, bytes, s, c.out.since());
  c.out.set_taken();
  return bytes;
}

std::size_t device_allocator::empty_outboxes(stream_memory& m) {
  section const hold(m);
  std::size_t bytes = 0;
  for (thread_cache* c : m.caches) {
    if (c->out.count() == 0) continue;
    c->shut();
    bytes += send_home(m, *c);
  }
  return bytes;
}

// Marks and marked blocks without the lock: a slot's first mark, while nothing else is noted of it.
namespace {

struct slot_place {
  slab* in = nullptr;  // null: look for it with the lock
  std::uint32_t index = 0;
  bool starts = false;
  thread_table::entry const* entry = nullptr;
};
slot_place live_slot(thread_table& mine, address a) noexcept {
  if (a - mine.last.base >= mine.last.bytes && !look_for_slots(mine, a)) return {};
  slab* const s = mine.last.in->slab_at(a);
  slot_place found;
  if (!s) return {};
  found.starts = s->starts(a - s->base, found.index);
  if (found.index >= s->slots || s->at(found.index) != slot::live) return {};
  found.entry = &mine.entries[s->way];
  if (found.entry->memory == s->owner) found.in = s;
  return found;
}

}  // namespace

bool quick_mark(clock::timeline* user, void const* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds() || !user || mine.users[thread_table::user_of(user)] != user) return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  if (!at.in || &user->owner() != &at.in->owner->home.load(base::memory_order_acquire)->owner()) return false;
  slab::first_mark* const marks = at.in->marks.load(base::memory_order_acquire);
  if (!marks || (marks[at.index].load(base::memory_order_relaxed) & slab::more)) return false;
  return user == at.entry->line || at.in->mark_first(marks, at.index, *user);
}

void remember_user(clock::timeline& user) noexcept {
  thread_table& mine = thread_table::mine();
  if (mine.holds()) mine.users[thread_table::user_of(&user)] = &user;
}

bool quick_deallocate_marked(clock::timeline const* last_use, void* p) noexcept {
  thread_table& mine = thread_table::mine();
  if (!mine.holds_quick()) return false;
  slot_place const at = live_slot(mine, reinterpret_cast<address>(p));
  if (!at.in || !at.starts) return false;
  slot_byte& state = at.in->byte(at.index);
  slab::first_mark* const marks = at.in->marks.load(base::memory_order_acquire);
  std::uintptr_t const known = marks ? marks[at.index].load(base::memory_order_relaxed) : 0;
  clock::timeline const* const user = slab::timeline_of(known);
  if (!user || (known & slab::more) || (last_use && last_use != user && last_use != at.entry->line)) return false;
  marks[at.index].store(0, base::memory_order_relaxed);  // before the slot can be anybody else's
  if (at.entry->cache->give_used(user, *at.in, at.index, state,
                                 static_cast<std::uint8_t>(state.get() & ~slot_bits::noted)))
    return true;
  marks[at.index].store(known, base::memory_order_relaxed);
  return false;
}

bool device_allocator::may_wait_in_outbox(region const& r, void const* p, clock::timeline const& user) const noexcept {
  return !deterministic_ && user.alive() == clock::life::own && r.slab_at(reinterpret_cast<address>(p));
}

}  // namespace weir::memory
