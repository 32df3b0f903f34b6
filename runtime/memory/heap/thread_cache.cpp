// The slow half of thread_cache.h: a cache is opened, shut, filled, spilled and emptied.
// Threads: as thread_cache.h.
#include "runtime/memory/heap/thread_cache.h"

#include <algorithm>

#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {

// What take() and give() read: of a shut cache each refuses, however many slots it has.
void thread_cache::set_sign(std::uint32_t c) noexcept {
  magazines_[c].least.store(revoked_ ? most_slots : 0, base::memory_order_relaxed);
  magazines_[c].most.store(revoked_ ? 0 : limits_[c], base::memory_order_relaxed);
}

void thread_cache::revoke() noexcept {
  if (revoked_)
    return;
  revoked_ = true;
  each_used([&](std::uint32_t c) { set_sign(c); });
  for (deferred_frees& out : outs)
    out.set_revoked();
  // A call that began before has the old sign: it is waited for.
  base::process_wide_fence();
  each_used([&](std::uint32_t c) { magazines_[c].head.wait_for_end(); });
  for (deferred_frees const& out : outs)
    out.wait_for_end();
}

void thread_cache::open(clock::stream_clock const& stream) noexcept {
  if (!revoked_)
    return;
  revoked_ = false;
  home = &stream;
  each_used([&](std::uint32_t c) {
    // Only the owner writes the heads, so that it takes off now what empty() has given away.
    if (emptied_)
      magazines_[c].head.end(magazines_[c].head.get() & ~magazine::count_bits), magazines_[c].freed.set(0);
    set_sign(c);
  });
  emptied_ = false;
  for (deferred_frees& out : outs)
    out.open();
}

void thread_cache::empty() noexcept {  // the owner sets the counts to 0 when it opens
  if (std::exchange(emptied_, true))
    return;
  each_used([&](std::uint32_t c) { from_slabs_[c] -= magazines_[c].count(); });
}

void thread_cache::use(std::uint32_t c) noexcept {
  if (limits_[c])
    return;
  used_[c / 64] |= std::uint64_t{1} << (c % 64);
  limits_[c] = first_limit;
  magazines_[c].size = static_cast<std::uint16_t>(size_classes::bytes(static_cast<int>(c)));
  magazines_[c].cost = observe::unpublished::cost(magazines_[c].size);
}

std::uint32_t thread_cache::wants(std::uint32_t c) noexcept {
  magazine& m = magazines_[c];
  if (m.count())
    return 0;
  use(c);
  missed(c, met::empty);
  set_sign(c);
  return limits_[c] / 2u - 1;  // half of the limit; the allocation that missed has one of these already
}

void thread_cache::put(std::uint32_t c, std::span<cached_slot const> from) noexcept {
  magazine& m = magazines_[c];
  std::copy(from.begin(), from.end(), m.slots.begin() + m.count());
  m.head.end(m.head.get() + from.size());
  from_slabs_[c] += static_cast<std::int64_t>(from.size());
}

std::size_t thread_cache::spill(std::uint32_t c, std::span<cached_slot> to) noexcept {
  magazine& m = magazines_[c];
  std::uint32_t const n = m.count();
  use(c);
  if (n >= limits_[c])
    missed(c, met::full);
  set_sign(c);
  if (n < limits_[c])  // it was not full, or missed() has raised its limit
    return 0;
  // The oldest go, and the rest move to the front.
  std::size_t const going = std::min<std::size_t>(n - limits_[c] / 2u, to.size());
  std::copy_n(m.slots.begin(), going, to.begin());
  std::copy(m.slots.begin() + static_cast<std::ptrdiff_t>(going), m.slots.begin() + n, m.slots.begin());
  m.head.end(m.head.get() - going);
  from_slabs_[c] -= static_cast<std::int64_t>(going);
  return going;
}

// The limit of a larger size rises when it was full after it was empty, or empty after it was full. Sizes
// that are only allocated, or only freed, would take room from sizes that need it.
void thread_cache::missed(std::uint32_t c, met what) noexcept {
  bool const as_before = std::exchange(last_[c], what) == what;
  if (!as_before || size_classes::bytes(static_cast<int>(c)) <= always_raised)
    raise_limit(c);
}

void thread_cache::raise_limit(std::uint32_t c) noexcept {
  auto const bytes = [](std::uint32_t size_class) { return size_classes::bytes(static_cast<int>(size_class)); };
  std::size_t const more = limits_[c] * bytes(c);  // the limit doubles
  if (limits_[c] == most_slots)
    return;
  if (granted_ + more > most_bytes) {  // take room from sizes that are empty now
    each_used([&](std::uint32_t other) {
      if (other == c || magazines_[other].count() || limits_[other] == first_limit)
        return;
      granted_ -= (limits_[other] - first_limit) * bytes(other);
      limits_[other] = first_limit;
      set_sign(other);
    });
    if (granted_ + more > most_bytes)
      return;
  }
  granted_ += more;
  limits_[c] = static_cast<std::uint8_t>(limits_[c] * 2);
}

bool thread_cache::has_freed_at(std::uint64_t now) const noexcept {
  bool found = false;
  each_used([&](std::uint32_t c) {
    found |= magazines_[c].count() > 0 && magazines_[c].freed.get() == static_cast<std::uint32_t>(now);
  });
  return found;
}

observe::cached_slots thread_cache::counted() const noexcept {
  observe::cached_slots n;
  each_used([&](std::uint32_t c) {
    std::uint64_t const head = magazines_[c].head.get();
    auto const size = static_cast<std::int64_t>(size_classes::bytes(static_cast<int>(c)));
    std::int64_t const held = emptied_ ? 0 : static_cast<std::int64_t>(head & magazine::count_bits);
    auto const given = static_cast<std::int64_t>(head / magazine::one_given);
    // Takes have no count of their own: what came in, less what is held, was taken.
    std::int64_t const taken = from_slabs_[c] + given - held;
    n.held += held, n.held_bytes += held * size;
    n.taken += taken, n.total_bytes += taken * size;
    n.given += given, n.given_bytes += given * size;
  });
  // A deferred free counts as given here, and as held while it waits here.
  auto const ever = unpublished_deferred();
  auto const now = outs[0].unpublished_here() + outs[1].unpublished_here();
  n.given += ever.slots, n.given_bytes += ever.bytes;
  n.waited = ever.slots, n.waited_bytes = ever.bytes;
  n.waiting_bytes = now.bytes, n.held_bytes += now.bytes;
  std::int64_t const unused_given = unused_given_.get() + unused_deferred_.get();
  n.unused_bytes = unused_taken_.get() - unused_given;
  n.taken_requested = n.total_bytes - unused_taken_.get(), n.given_requested = n.given_bytes - unused_given;
  return n;
}

void thread_cache::forget() noexcept {
  each_used([&](std::uint32_t c) {
    magazines_[c].head.end(0);
    from_slabs_[c] = 0;
    limits_[c] = first_limit;
    last_[c] = met::nothing;
  });
  unused_taken_.set(0), unused_given_.set(0), unused_deferred_.set(0);
  unpublished_.forget(), published_deferred_ = {};
  granted_ = 0;
  for (deferred_frees& out : outs)
    out.forget();
}

observe::change thread_cache::newly_deferred() noexcept {
  auto const deferred = unpublished_deferred();
  observe::change const now{deferred.slots, deferred.bytes, deferred.bytes - unused_deferred_.get()};
  observe::change const then = std::exchange(published_deferred_, now);
  return {now.blocks - then.blocks, now.bytes - then.bytes, now.requested - then.requested};
}
void thread_cache::publish(observe::heap_counters& to) noexcept {
  to.absorb(unpublished_.take(), newly_deferred());
}

// The only cache of a heap may write its counters here: other writers have the lock and have shut the cache.
address thread_cache::publish_and_end(base::bias_word& head, std::uint64_t to, address answer) noexcept {
  stream_heap& m = *of.load();
  if (m.sole_ == this)
    unpublished_.allow(m.counts_.left_after(unpublished_.take(), newly_deferred()));
  else  // it reports to the holder of the lock alone
    unpublished_.allow_all();
  head.end(to);
  return answer;
}

}  // namespace weir::memory
