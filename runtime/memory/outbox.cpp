// Outboxes on their way home: what a thread gathered becomes pending, all of it at once.
// Threads: as outbox.h and device_allocator.h.
#include "runtime/memory/outbox.h"

#include <algorithm>

#include "runtime/memory/device_allocator.h"

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
  limit_ = first_limit;
  taken_ = false;
  user_ = nullptr;
}

// A block that is the first for its stream and stamp goes home by itself, as it would without an outbox; what follows it is gathered.
bool device_allocator::post(stream_memory& m, thread_cache& c, slabs::taken b, clock::timeline& user, clock::stamp s, bool& due) noexcept try {
  if (s.stream != user.id() || !open(m, c)) return false;
  slot_byte& state = b.from->byte(b.index);
  if (c.give_used(&user, *b.from, b.index, state, state.get())) return true;
  bool const follows = c.out.is_for(s), was_full = c.out.count() != 0;
  m.held_since_fence += send_home(m, c);
  if (m.held_since_fence >= fence_after(m, 8)) due = true, m.held_since_fence = 0;
  c.out.gather(user, s.n, follows && was_full, m.pending);
  return follows && c.give_used(&user, *b.from, b.index, state, state.get());
} catch (std::bad_alloc const&) {
  return false;
}

std::size_t device_allocator::send_home(stream_memory& m, thread_cache& c) noexcept {
  auto const slots = c.out.slots();
  if (slots.empty()) return 0;
  auto const bytes = static_cast<std::size_t>(c.out.held_bytes());
  clock::stamp const s = c.out.stamp();
  clock::timeline& home = *m.home.load();
  m.counts.sent_home(static_cast<std::int64_t>(slots.size()), static_cast<std::int64_t>(bytes));
  for (slabs::taken const b : slots) {
    m.small.hold(*b.from, b.index);
    tell_held(observe::action::held, b.from->start(b.index), b.from->size, s.stream);
  }
  m.pending.push(c.out.room(), slots, bytes, s, home.now().n);
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

bool device_allocator::may_wait_in_outbox(region const& r, void const* p, clock::timeline const& user) const noexcept {
  return !deterministic_ && user.alive() == clock::life::own && r.slab_at(reinterpret_cast<address>(p));
}

}  // namespace weir::memory
