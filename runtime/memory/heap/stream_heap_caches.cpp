// The thread caches of one heap: filled, spilled and emptied; their deferred frees become pending.
// Threads: as thread_cache.h.

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/memory/heap/session.h"

namespace weir::memory {

void stream_heap::hear() noexcept {
  table_entry const& mine = thread_table::mine().entries[bucket_];
  // On its own thread no call is in the cache. Any other thread shuts it first.
  if (mine.cache != sole_ || mine.memory != this)
    sole_->revoke();
  if (sole_->has_unpublished())
    sole_->publish(counts_);
}

void stream_heap::caches_changed() noexcept {
  thread_cache* const new_sole = caches_.size() == 1 && !counts_.is_shared() ? caches_.front() : nullptr;
  if (new_sole != sole_) {
    // The old one reports now, and then no more by itself. The new one reports now, and gets a grant at its
    // next call.
    if (sole_) {
      hear();
      sole_->publish_freely();
    }
    if (new_sole) {
      new_sole->revoke();
      new_sole->publish(counts_);
    }
    sole_ = new_sole;
  }
  // Every other cache reports to the holder of the lock alone. One without a grant, as a new one is, gets one
  // that never ends.
  for (thread_cache* c : caches_) {
    if (c != new_sole && !c->has_unpublished())
      c->publish_freely();
  }
  counts_.set_alone(!counts_.is_shared() && caches_.size() <= 1);
}

void stream_heap::share(observe::shared_levels& with) noexcept {
  base::biased_lock const hold(lock_);
  if (sole_) {
    hear();
    thread_cache* const old_sole = sole_;
    sole_ = nullptr;
    old_sole->publish_freely();
  }
  counts_.share(with);
}

namespace {
slab& slab_of(address_space const& space, cached_slot s) noexcept {
  return *space.find(reinterpret_cast<void const*>(s.at))->table.slab_at(s.at);
}
}  // namespace

std::size_t stream_heap::empty(thread_cache& c) noexcept {
  std::int64_t emptied = 0;
  std::size_t bytes = 0;
  std::uint64_t const now = home().now().n;
  c.each([&](cached_slot s) {
    slab& from = slab_of(of_.space, s);
    ++emptied;
    bytes += from.size;
    if (slots_.return_from_cache(from, from.index(s.at), c.freed(from.size_class, now)))
      return_run(from);
  });
  c.empty();
  if (emptied)
    counts_.returned(emptied, bytes);
  (void)flush_all(c);  // its deferred frees become pending, no free bytes
  return bytes;
}

std::size_t stream_heap::revoke_and_empty() noexcept {
  std::size_t bytes = 0;
  for (thread_cache* c : caches_) {
    c->revoke();
    bytes += empty(*c);
  }
  return bytes;
}

void stream_heap::enlist(thread_cache& c) {
  base::biased_lock const hold(lock_);
  caches_.push_back(&c);  // it may throw: then the cache still has no heap, and this thread's next call takes it again
  {
    base::no_switch const one_step;  // what is cleared depends on the cache's heap before: it adds no switch point
    c.forget();
    c.of.store(this);
  }
  caches_changed();  // may wait for the owner of another cache
}

// The cache stays shut.
void stream_heap::leave(thread_cache& c) noexcept {
  session const in(*this);
  c.revoke();
  c.publish(counts_);
  empty(c);
  c.publish(counts_);
  cached_before_ += c.counted();
  c.of.store(nullptr);
  lock_.revoke_bias(c.own);
  std::erase(caches_, &c);
  caches_changed();
  for (deferred_frees& out : c.outs)
    out.end();
}

void stream_heap::leave_all() noexcept {
  while (!caches_.empty())
    leave(*caches_.back());
}

std::size_t stream_heap::empty_caches() {
  session const in(*this);
  std::size_t const bytes = revoke_and_empty();
  return bytes + return_idle_cells();
}

// The cache has the thread's slots, and its word to own the lock by. Null: the heap has no caches, each call
// must be seen at once, the device is lost or maps no memory, no other thread could shut a cache, or the host
// has no memory for one.
thread_cache* stream_heap::cache_here() noexcept {
  if (!cacheable() || !of_.space.maps() || of_.announced || of_.runtime.observer() || of_.lost() ||
      home().seen_captured() || !base::has_process_wide_fence())
    return nullptr;
  thread_table const& mine = thread_table::mine();
  if (auto const& e = mine.entries[bucket_]; mine.holds() && e.memory == this && e.stream == &home())
    return e.cache;
  return thread_caches::make(home(), *this);
}

thread_cache* stream_heap::cache_to_allocate() noexcept {
  thread_cache* const found = cache_here();
  if (found)
    thread_caches::use(home(), *this, *found);
  return found;
}

// After a slab had a slot of this size: takes a few more, counted as lent. Requires: the lock, as spill.
void stream_heap::refill(thread_cache& c, int size_class) noexcept {
  if (!open(c))
    return;
  std::array<cached_slot, thread_cache::most_slots> some;
  std::size_t const n =
      slots_.take_for_cache(size_class, std::span(some).first(c.wants(static_cast<std::uint32_t>(size_class))));
  if (n == 0)
    return;
  counts_.drawn(static_cast<std::int64_t>(n), n * size_classes::bytes(size_class));
  c.put(static_cast<std::uint32_t>(size_class), std::span(some).first(n));
}

void stream_heap::spill(thread_cache& c, int size_class) noexcept {
  if (!open(c))
    return;
  std::array<cached_slot, thread_cache::most_slots> some;
  std::size_t const n = c.spill(static_cast<std::uint32_t>(size_class), some);
  std::uint64_t const freed = c.freed(static_cast<std::uint32_t>(size_class), home().now().n);
  for (std::size_t i = 0; i < n; ++i) {
    slab& from = slab_of(of_.space, some[i]);
    if (slots_.return_from_cache(from, from.index(some[i].at), freed))
      return_run(from);
  }
  if (n)
    counts_.returned(static_cast<std::int64_t>(n), n * size_classes::bytes(size_class));
}

bool stream_heap::open(thread_cache& c) noexcept {
  if (c.of.load() != this || !cacheable())
    return false;
  c.open(home());
  // The sole cache gets a grant at its next call. Any other one reports now, and from here on to the lock's
  // holder only.
  if (&c != sole_) {
    c.publish(counts_);
    c.publish_freely();
  }
  return true;
}

// The first block for its streams and stamps becomes pending by itself, as without deferral; later ones wait.
bool stream_heap::defer_free(thread_cache& c, slabs::taken b, deferred_frees::users by,
                             std::span<clock::stamp const> its, bool& due) noexcept try {
  if (!open(c))
    return false;
  deferred_frees& out = c.out_for(by);
  slot_byte& state = b.from->byte(b.index);
  auto const was = static_cast<std::uint8_t>(state.get() & ~slot_bits::noted);
  std::size_t const size = b.from->size, requested = b.from->requested(b.index);
  auto const defer = [&] {
    base::single_writer<std::int64_t> not_used;  // put() counts unused bytes here; freed_pending() counts them as well
    if (!out.put(by, *b.from, b.index, state, was, not_used, c.home))
      return false;
    out.note_published(static_cast<std::int64_t>(size));
    counts_.freed_pending(observe::size_pool::small, size, requested);
    // reported with its free: a snapshot shows it as pending from here on
    of_.record_pending(observe::action::free_pending, b.from->start(b.index), size, its.front().stream);
    // The holder of the lock has the slot until it is pending: its marks go.
    b.from->forget_first_users(b.index);
    return true;
  };
  if (defer())
    return true;
  // `out` gathers for other stamps, or for these and is full or was emptied. What it gathered becomes pending, and
  // from now on frees for these stamps are gathered.
  bool const were_for_these = out.is_for(its), had_some = out.count() != 0;
  pending_since_fence_ += flush(out);
  if (pending_since_fence_ >= fence_after(8)) {
    due = true;
    pending_since_fence_ = 0;
  }
  // It has frees for these stamps and took no more: most likely its limit was too low.
  bool const was_full = were_for_these && had_some;
  out.gather(by, its, was_full);
  // The first one for new stamps is left to the caller, who makes it pending by itself.
  if (!were_for_these)
    return false;
  return defer();
} catch (std::bad_alloc const&) {
  return false;
}

std::size_t stream_heap::flush(deferred_frees& out) noexcept {
  auto const batch = out.slots();
  if (batch.empty())
    return 0;
  auto const bytes = static_cast<std::size_t>(out.held_bytes());
  auto const unpublished = out.unpublished_here();
  if (unpublished.slots)
    counts_.sent_home(unpublished.slots, unpublished.bytes);
  for (slabs::taken const b : batch)
    slots_.hold(*b.from, b.index);
  pending_.push(out.spare(), batch, bytes, out.stamps(), out.since());
  out.set_taken();
  return bytes;
}

std::size_t stream_heap::flush_all(thread_cache& c) noexcept {
  std::size_t bytes = 0;
  for (deferred_frees& out : c.outs)
    bytes += flush(out);
  return bytes;
}

std::size_t stream_heap::flush_deferred() {
  session const in(*this);
  std::size_t bytes = 0;
  for (thread_cache* c : caches_) {
    if (std::ranges::all_of(c->outs, [](deferred_frees const& out) { return out.count() == 0; }))
      continue;
    c->revoke();
    bytes += flush_all(*c);
  }
  return bytes;
}

bool stream_heap::may_defer_free(region const& r, void const* p, clock::stream_clock const& user) const noexcept {
  bool const may_be_asked = user.alive() == clock::life::own || user.alive() == clock::life::foreign;
  return !of_.deterministic && may_be_asked && r.table.slab_at(reinterpret_cast<address>(p));
}

}  // namespace weir::memory
