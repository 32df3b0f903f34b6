// What a session does with a heap's blocks and pending blocks; session_handles.cpp has its handles.
// Threads: as session.h.
#include "runtime/memory/heap/session.h"

#include <algorithm>

namespace weir::memory {
namespace {

excluded::range use_slot(slab& s, clock::stream_clock* home, address a,
                         clock::stream_clock& user) {  // Throws: bad_alloc
  std::uint32_t const i = s.index(a);
  if (i >= s.slots || s.at(i) != slot::live)
    return {};
  std::size_t const requested = s.requested(i);
  // A slot of a page that streams share names its own home.
  if (slab::note const* const n = s.note_of(i); n && n->home)
    home = n->home;
  if (&user != home)
    s.record_use(i, user);
  return {reinterpret_cast<void*>(s.start(i)), requested};  // NOLINT(performance-no-int-to-ptr)
}

struct sizes {
  observe::size_pool pool;
  std::size_t rounded, requested;
};
sizes sizes_of(block_ref const& b) noexcept {
  if (b.in_slab)
    return {observe::size_pool::small, b.in_slab->size, b.in_slab->requested(b.index)};
  return {observe::size_pool::large, b.block->bytes, b.block->requested};
}

}  // namespace

excluded::range excluded::use(region& r, address a, clock::stream_clock& user) noexcept try {
  if (heap_.is_asleep()) [[unlikely]]
    return {};
  if (slab* const s = r.table.slab_at(a))
    return use_slot(*s, heap_.home_.load(base::memory_order_relaxed), a, user);
  heap_block* const p = r.table.covering(a);
  if (!p || p->is != state::live)
    return {};
  if (&user != p->home && !p->users.has(user))
    p->users.add(user);
  return {reinterpret_cast<void*>(p->at), p->requested};  // NOLINT(performance-no-int-to-ptr)
} catch (...) {
  return {};
}

observe::cached_slots excluded::cached_slots() const noexcept {
  observe::cached_slots all = heap_.cached_before_;
  for (thread_cache const* c : heap_.caches_)
    all += c->counted();
  return all;
}

void excluded::validate(std::vector<std::string>& wrong, std::string const& subject, std::uint64_t now) const {
  heap_.blocks_.validate(wrong, subject);
  heap_.slots_.validate(wrong, subject, now);
}

void quiet_session::shut_caches() noexcept {
  for (thread_cache* c : heap_.caches_)
    c->revoke();
}

void session::give_to(clock::stream_clock& user, void* p, slab::spare_note spare) noexcept {
  block_ref const b = block_ref::find(*heap_.of_.space.find(p), reinterpret_cast<address>(p));
  b.in_slab->set_home(b.index, user, std::move(spare));
}

// A pending block that `to` alone used comes first. It is ordered, because the stream is the same.
void* session::lend(alloc_request const& r, clock::stream_clock& to, std::size_t bytes, std::size_t alignment,
                    std::size_t at_most) {
  device_context& of = heap_.of_;
  std::uint64_t const up_to = to.covers_up_to(heap_.home());
  pending_block b;
  auto const suits = [&](pending_block const& h) {
    // It waits for `to` alone, which is ordered behind its use by the home, too.
    bool const is_ordered = h.block && h.stamps.size() == 1 && h.since <= up_to;
    return is_ordered && h.block->bytes >= bytes && h.block->bytes <= at_most && h.block->at % alignment == 0;
  };
  if (heap_.pending_.take(to.id(), suits, b)) {
    heap_.note_waiting();
    heap_.counts_.pending_no_more(observe::size_pool::large, b.bytes);
    of.record_pending(observe::action::free_completed, b.block->at, b.bytes, 0);
    b.block->is = state::live;
    b.block->users.clear();
    return heap_.hand_out(*b.block, r, &to);
  }
  heap_block* const p = heap_.blocks_.take_if(
      bytes, alignment, [&](heap_block const& f) { return of.count_search(1), f.freed <= up_to; });
  WEIR_RULE(!p || p->freed <= up_to, "a block is lent to a stream that its last use is not ordered before");
  return p ? heap_.hand_out(*p, r, &to) : nullptr;
}

std::uint64_t session::rehome(address block, clock::stream_clock& home) noexcept {
  heap_block& p = *block_ref::find(*heap_.of_.space.find(reinterpret_cast<void const*>(block)), block).block;
  p.home = &home;
  return p.freed;
}

void session::take_back(address block, std::uint64_t freed) noexcept {
  heap_block& p = *block_ref::find(*heap_.of_.space.find(reinterpret_cast<void const*>(block)), block).block;
  heap_.counts_.freed(observe::size_pool::large, p.bytes, p.requested);
  heap_.blocks_.give(p, freed);
}

void session::stock(thread_cache& c, alloc_request const& r) noexcept {
  if (!heap_.cacheable())
    return;
  if (r.size_class < 0)
    may_own(c);
  else
    heap_.refill(c, r.size_class);
}

// As stream_heap::count_asleep: a sleeping pool's blocks are counted as freed already.
void session::count_awake(block_ref const& b) noexcept {
  sizes const its = sizes_of(b);
  heap_.counts_.allocated(its.pool, its.rounded, its.requested);
}

bool session::fence_of_others_is_due(std::size_t bytes) noexcept {
  heap_.pending_since_fence_ += bytes;
  if (!heap_.of_.deterministic && heap_.pending_since_fence_ < heap_.fence_after(8))
    return false;
  heap_.pending_since_fence_ = 0;
  return true;
}

void session::put_pending(block_ref const& b, std::span<clock::stamp const> stamps, std::uint64_t since) noexcept {
  sizes const its = sizes_of(b);
  heap_block* const whole = b.in_slab ? nullptr : b.block;
  WEIR_RULE(!whole || whole->is == state::live, "a block that is not live becomes pending");
  WEIR_RULE(since <= heap_.home_.seen()->newest_number(), "the stamp of a pending block is ahead of its stream");
  heap_.pending_.push({whole, b.in_slab, b.index, its.rounded, {}, since}, stamps);
  heap_.of_.record_pending(observe::action::free_pending, b.start, its.rounded, stamps.front().stream);
  if (b.in_slab) {
    b.in_slab->forget(b.index);  // its marks: they are among the stamps. The arena forgets a block's when it is free
    heap_.slots_.hold(*b.in_slab, b.index);
  } else {
    b.block->is = state::pending;
  }
  heap_.counts_.freed_pending(its.pool, its.rounded, its.requested);
}

void session::put_free(block_ref const& b, thread_cache* cache) noexcept {
  sizes const its = sizes_of(b);
  heap_.counts_.freed(its.pool, its.rounded, its.requested);
  if (b.in_slab) {
    // Of a full cache the older half goes to the slabs, so that the thread's next frees find room.
    if (cache)
      heap_.spill(*cache, b.in_slab->size_class);
    if (heap_.slots_.give(*b.in_slab, b.index, heap_.home().now().n))
      heap_.return_run(*b.in_slab);
    return;
  }
  heap_.blocks_.give(*b.block, heap_.home().now().n);
  if (cache && heap_.cacheable())
    may_own(*cache);
}

// The only heap of a device needs no fence: its memory serves no other stream.
bool session::fence_at_home_is_due(std::size_t bytes) noexcept {
  heap_.freed_since_fence_ += bytes;
  return heap_.index_.size() > 1 && heap_.freed_since_fence_ >= heap_.fence_at_home_after();
}

void session::note_fence_at_home() noexcept {
  heap_.freed_since_fence_ = 0;
  if (heap_.wanted_ > 0)
    --heap_.wanted_;
  else
    ++heap_.unwanted_;
}

bool session::came_free_at(std::uint64_t number) noexcept {
  bool const in_a_cache =
      std::ranges::any_of(heap_.caches_, [&](thread_cache const* c) { return c->has_freed_at(number); });
  if (!in_a_cache && heap_.blocks_.newest_given() < number && heap_.slots_.newest_freed() < number)
    return false;
  heap_.freed_since_fence_ = 0;
  return true;
}

bool session::reclaim_oldest(std::uint64_t sequence) noexcept {
  if (heap_.pending_.empty() || heap_.pending_.oldest()->sequence != sequence)
    return false;
  heap_.pending_.reclaim_oldest([&](pending_block const& b) { heap_.reclaimed(b, heap_.home().now().n); });
  return true;
}

void session::shut_and_flush() noexcept {
  for (thread_cache* c : heap_.caches_) {
    c->revoke();
    (void)heap_.flush_all(*c);
  }
}

void session::empty_shut() noexcept {
  for (thread_cache* c : heap_.caches_)
    heap_.empty(*c);
}

void session::return_empty_runs() noexcept {
  while (slab* const s = heap_.slots_.any_empty())
    heap_.return_run(*s);
}

std::size_t session::address_bytes() const noexcept {
  std::size_t all = 0;
  for (region const* r : heap_.blocks_.regions())
    all += r->bytes;
  return all;
}

void* session::commit(growth_plan& g, alloc_request const& r) {
  // A registered pool grows for the request of all its bytes that its making does. That uses none: they
  // become free.
  if (heap_.rules().one_handle) {
    heap_.blocks_.roll_back(g);
    return reinterpret_cast<void*>(g.block);  // NOLINT(performance-no-int-to-ptr)
  }
  if (r.size_class < 0)
    return heap_.hand_out(*heap_.blocks_.commit(g), r, nullptr);
  heap_.cut_run(*heap_.blocks_.commit_run(g), r.size_class);
  return heap_.hand_out(heap_.slots_.take(r.size_class, r.bytes), r);
}

void session::move_to(clock::stream_clock& heir, std::uint64_t readers) noexcept {
  heap_.blocks_.forget_stamps(), heap_.slots_.forget_stamps();  // they are no numbers of the new stream
  heap_.home_.store(&heir), heap_.home_lifetime_ = heir.hold();
  heap_.readers_.store(readers);
}

}  // namespace weir::memory
