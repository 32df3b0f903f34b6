// Reuse of memory that other streams used.
// Threads: as reuse.h.
#include "runtime/memory/device/reuse.h"

#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/searches.h"

namespace weir::memory {
namespace {
constexpr std::size_t looked_at_a_miss = 32;  // heaps that one miss locks, of those that may serve
constexpr unsigned often_borrowed = 8;        // borrowed blocks in a row, before a stream gets pages for them
constexpr std::size_t most_streams_with_a_page = 16;
// Pending blocks left to the streams that use them, before a stream waits for one. Not two: if each stage of
// a pipeline reuses the blocks of another, two leave three stages no spare block, and each delay stops all.
constexpr std::size_t ahead = 3;
constexpr std::size_t ahead_of_many = 32;  // of the newest 64, if hundreds are pending
constexpr std::size_t ahead_in_order = 2;  // deterministic

// Whether the block is one that the request could have, once its users are done.
bool would_serve(pending_block const& b, alloc_request const& r) {
  if (r.size_class >= 0)
    return b.in_slab && b.in_slab->size_class == r.size_class;
  return b.block && b.bytes >= r.rounded && b.bytes <= 2 * r.rounded &&
         round_up(b.block->at, r.alignment) + r.rounded <= b.block->end();
}

// As how many blocks it counts, of those that are left to their users.
std::size_t counts_as(pending_block const& b, alloc_request const& r) {
  if (r.size_class >= 0)
    return b.in_slab ? b.slots() : 0;
  return would_serve(b, r) ? 1 : 0;
}

// 0: it is of another kind, or complete when the fences are.
std::size_t blocks_beyond(std::span<clock::stamp const> fences, pending_block const& b, alloc_request const& r) {
  std::size_t const blocks = counts_as(b, r);
  if (blocks == 0)
    return 0;
  auto const waits_on = [&](clock::stamp s) {
    return std::none_of(fences.begin(), fences.end(),
                        [&](clock::stamp f) { return f.stream == s.stream && f.n >= s.n; });
  };
  return std::any_of(b.stamps.begin(), b.stamps.end(), waits_on) ? blocks : 0;
}
}  // namespace

// A stream that only borrows from other heaps misses on every allocation and takes every heap's lock. After
// eight borrowed blocks in a row it gets pages of its own, if the bound has room. For blocks of up to half a
// page the bound allows one page a stream.
bool block_reuse::should_grow_instead(stream_heap& mine, alloc_request const& r, std::size_t& spare) {
  if (r.size_class >= 0 || mine.borrowed() < often_borrowed)
    return false;
  // Its pages would never go back.
  if (mine.rules().pages_stay)
    return false;
  mine.forget_borrowed();
  std::size_t const page = of_.space.page_bytes();
  std::size_t const others = std::min(heaps_.index.size(), most_streams_with_a_page) - 1;
  std::size_t const pages_of_others = r.rounded <= page / 2 ? page * others : 0;
  reserve_bound::usage n = bound_.now();
  n.pending = 0;  // pending blocks may be complete
  // As growth will decide: its bound, a page, and what it may spend besides.
  std::size_t const may_reserve = bound_.most(n, r.rounded) + page + pages_of_others;
  if (of_.counts.reserved() + round_up(r.rounded, page) > may_reserve)
    return false;
  spare = pages_of_others;
  return true;
}

// Once each, in this order, by docs/decisions/reuse.md. No lock is held between two steps, so other threads allocate and
// free meanwhile: a step is asked at its turn whether it applies, and looks anew.
constexpr block_reuse::step block_reuse::steps[] = {
    {"in the order of calls", &block_reuse::is_deterministic, &block_reuse::in_order_of_calls},
    {"own pending blocks", &block_reuse::has_pending, &block_reuse::own_pending},
    {"own memory that moves", &block_reuse::is_large, &block_reuse::own_that_moves},
    {"deferred frees flushed", &block_reuse::is_small, &block_reuse::own_deferred},
    {"other heaps, known order", &block_reuse::may_borrow, &block_reuse::close_fit_of_others},
    {"other heaps, polled", &block_reuse::may_borrow_polled, &block_reuse::polled_of_others},
    {"a device wait instead of growth", &block_reuse::may_wait_before_growth, &block_reuse::oldest_after_a_wait},
    {"all pending blocks polled", &block_reuse::may_poll, &block_reuse::all_polled},
};
void* block_reuse::find(stream_heap& mine, alloc_request const& r) {
  for (step const& s : steps) {
    if (!(this->*s.applies)(mine, r))
      continue;
    found const f = (this->*s.run)(mine, r);
    if (f.block || f.grow_now)
      return f.block;
  }
  return nullptr;
}

bool block_reuse::is_deterministic(stream_heap const&, alloc_request const&) const {
  return of_.deterministic;
}
bool block_reuse::has_pending(stream_heap const& mine, alloc_request const&) const {
  return mine.bytes_pending() > 0;
}
bool block_reuse::is_large(stream_heap const&, alloc_request const& r) const {
  return r.size_class < 0;
}
bool block_reuse::is_small(stream_heap const&, alloc_request const& r) const {
  return r.size_class >= 0;
}
bool block_reuse::may_borrow(stream_heap const&, alloc_request const& r) const {
  return r.size_class < 0 && heaps_.index.size() > 1;
}
bool block_reuse::may_poll(stream_heap const&, alloc_request const&) const {
  return of_.polls;
}
bool block_reuse::may_borrow_polled(stream_heap const& mine, alloc_request const& r) const {
  return may_borrow(mine, r) && of_.polls;
}
bool block_reuse::may_wait_before_growth(stream_heap const& mine, alloc_request const&) const {
  return mine.bytes_pending() > 0 && of_.waits == options::wait_policy::before_growth;
}

// A borrowed block is lent whole: the rest of a larger one would serve no other request.
block_reuse::found block_reuse::close_fit_of_others(stream_heap& mine, alloc_request const& r) {
  return {borrowed(mine, r, r.rounded + r.rounded / 8)};
}

// Memory of others that is complete costs nothing; new pages and moves do.
block_reuse::found block_reuse::polled_of_others(stream_heap& mine, alloc_request const& r) {
  std::size_t left = asked_a_miss;
  heaps_.index.some(heap_index::waits, heaps_.scan_start.fetch_add(1, base::memory_order_relaxed), [&](stream_heap& m) {
    (void)completion_.poll(m, asked_a_miss / 4);
    --left;
    return left == 0;
  });
  (void)completion_.poll_others(mine, r, asked_a_miss, looked_at_a_miss);
  return {borrowed(mine, r, ~std::size_t{0})};
}

void* block_reuse::borrowed(stream_heap& mine, alloc_request const& r, std::size_t at_most) {
  void* const p = from_others(mine, r, at_most, looked_at_a_miss);
  if (p)
    mine.note_borrowed();
  return p;
}

// Until a query pending blocks count as used, and so raise the bound. If growth would pass it without them, all
// are queried.
block_reuse::found block_reuse::all_polled(stream_heap& mine, alloc_request const& r) {
  if (!grows_for_what_waits(mine, r))
    return {};
  completion_.reclaim_complete();
  {
    session in(mine);
    if (void* const p = in.take(r))
      return {p};
  }
  return {r.size_class < 0 ? from_others(mine, r, ~std::size_t{0}) : nullptr};
}

// Memory of its own moves to where the block goes: then nothing is borrowed.
block_reuse::found block_reuse::own_that_moves(stream_heap& mine, alloc_request const& r) {
  session const in(mine);
  return {.grow_now = in.places_first() && in.fits_mapped(r.rounded)};
}

// Whether growth would pass the bound that holds if all pending blocks are complete. Until a query they count
// as used.
bool block_reuse::grows_for_what_waits(stream_heap& mine, alloc_request const& r) {
  // The index spares the walk through all heaps.
  if (!heaps_.index.any(heap_index::waits))
    return false;
  reserve_bound::usage n = bound_.now();
  if (n.pending == 0)
    return false;
  n.pending = 0;
  // One heap with few fronts: own_pending() has queried all of them just now.
  if (heaps_.index.size() == 1) {
    if (quiet_session(mine).fronts().size() <= asked_a_miss)
      return false;
  }
  std::size_t const most =
      (r.size_class < 0 ? r.rounded + r.alignment : slabs::usual_run_bytes) + of_.space.page_bytes();
  return of_.counts.reserved() + most > bound_.most(n, r.rounded);
}

// Deterministic: a miss takes the pending block freed first, and waits for it on the device, complete or not.
block_reuse::found block_reuse::in_order_of_calls(stream_heap& mine, alloc_request const& r) {
  if (of_.waits == options::wait_policy::never || mine.home().carries_collectives())
    return {.grow_now = true};
  for (;;) {
    std::vector<clock::stamp> stamps;
    std::uint64_t sequence = 0;
    {
      session const in(mine);
      // The last few are left to their users.
      if (in.pending_count() <= ahead_in_order)
        return {.grow_now = true};
      stamps = in.oldest_pending()->stamps;
      sequence = in.oldest_pending()->sequence;
    }
    of_.count_search(1);
    for (clock::stamp const s : stamps) {
      if (order_behind(mine, s) == ordering::refused)
        return {.grow_now = true};
    }
    session in(mine);
    // Another thread has it by now.
    if (!in.reclaim_oldest(sequence))
      continue;
    if (void* const p = in.take(r))
      return {p};
  }
}

block_reuse::found block_reuse::own_pending(stream_heap& mine, alloc_request const& r) {
  {
    session in(mine);
    if (in.reclaim()) {
      if (void* const p = in.take(r))
        return {p};
    }
  }
  if (!of_.polls || !completion_.poll(mine, asked_a_miss))
    return {};
  return {session(mine).take(r)};
}

// Frees that threads still defer, before the heap grows.
block_reuse::found block_reuse::own_deferred(stream_heap& mine, alloc_request const& r) {
  if (!mine.flush_deferred())
    return {};
  return own_pending(mine, r);
}

void* block_reuse::from_others(stream_heap& mine, alloc_request const& r, std::size_t at_most,
                               std::size_t most_donors) {
  if (heaps_.index.size() < 2)
    return nullptr;
  clock::stream_clock& home = mine.home();
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  void* out = nullptr;
  heaps_.donors_for(mine, bytes, most_donors, [&](stream_heap& other) {
    session in(other);
    // An ended pool's heap may have gone to a later pool since the table was read.
    if (other.is_asleep() || !heap_table::may_lend(other, mine))
      return false;
    if (heaps_.index.many())
      in.end_ownership();  // else it stays listed by all its mapped bytes, for every miss
    of_.count_search(1);
    in.sought_by_others();
    out = in.lend(r, home, bytes, alignment, at_most);
    return out != nullptr;
  });
  return out;
}

bool block_reuse::hand_over(stream_heap& from, void* block, stream_heap& mine) {
  if (&from == &mine)
    return true;
  auto const at = reinterpret_cast<address>(block);
  clock::stamp last;
  std::size_t bytes = 0;
  {
    session in(from);
    last = {from.home().id(), in.rehome(at, mine.home())};
    bytes = block_ref::find(*of_.space.find(block), at).block->bytes;
  }
  if (last.n == 0 || of_.is_complete(last))
    return true;
  bool const may_wait = of_.waits != options::wait_policy::never;
  ordering const now = may_wait ? order_behind(mine, last) : ordering::refused;
  if (now == ordering::refused) {
    session(from).take_back(at, last.n);
    return false;
  }
  if (now == ordering::waits)
    tell_wait(mine, last, at, bytes);
  return true;
}

void block_reuse::tell_wait(stream_heap& mine, clock::stamp s, address at, std::size_t bytes) const {
  if (!of_.runtime.observer()) [[likely]]
    return;
  clock::stream_clock const& other = *clock::find(s.stream);
  of_.runtime.observer()->wait_inserted({of_.device, mine.home().handle()}, {other.device(), other.handle()}, at,
                                        bytes);
}

block_reuse::ordering block_reuse::order_behind(stream_heap& mine, clock::stamp s) {
  clock::stream_clock& home = mine.home();
  if (!clock::find(s.stream) || of_.ordered_or_complete(home, s))
    return ordering::already;
  // A late part of a collective delays all ranks, and what it would wait for may itself wait for one of them, through
  // other streams.
  if (home.carries_collectives())
    return ordering::refused;
  bool behind_all = false;
  if (!home.wait(s, &behind_all).ok())
    return ordering::refused;
  of_.counts.waited(behind_all);
  if (logs(of_.runtime, log_level::debug)) [[unlikely]]
    log(log_level::debug, {of_.device, home.id()},
        "waits on the device for stream " + std::to_string(s.stream) + ", to reuse its memory");
  return ordering::waits;
}

// If the host runs ahead of the device, memory would grow with the distance. So the stream waits for the
// block freed first, if a recorded fence leaves other such blocks to their users. It stays a few blocks
// ahead, and no wait includes more work than it must. It waits for slots, which are small, only if many are
// pending.
block_reuse::found block_reuse::oldest_after_a_wait(stream_heap& mine, alloc_request const& r) {
  std::vector<clock::stamp> stamps;
  address at = 0;
  std::size_t bytes = 0;
  {
    session const in(mine);
    pending_block const* const oldest = worth_a_wait(in, r);
    if (!oldest)
      return {};
    stamps = oldest->stamps;
    at = oldest->block ? oldest->block->at : oldest->in_slab->start(oldest->index);
    bytes = oldest->bytes;
  }
  for (clock::stamp const s : stamps) {
    ordering const now = order_behind(mine, s);
    if (now == ordering::refused)
      return {};
    if (now == ordering::waits)
      tell_wait(mine, s, at, bytes);
  }
  session in(mine);
  (void)in.reclaim();
  return {in.take(r)};
}

// Null: none, or too few others would remain.
pending_block const* block_reuse::worth_a_wait(session const& in, alloc_request const& r) {
  std::size_t const waiting = r.size_class >= 0 ? in.pending_bytes_in_slots() : in.pending_bytes();
  bool const many = waiting > 2 * in.heap().fence_after(8);  // more than two fences cover
  // A slot is small: it is worth a wait only where many are pending.
  if (r.size_class >= 0 && !many)
    return nullptr;
  if (r.size_class < 0 && in.pending_count() <= ahead)
    return nullptr;
  pending_block const* const oldest = oldest_that_serves(in, r);
  if (!oldest)
    return nullptr;
  auto const fences = fences_to_wait_for(in, *oldest);
  if (!fences)
    return nullptr;
  if (r.size_class < 0 && enough_fit_beyond(in, r, *fences))
    return oldest;
  // This is the only test for slots, of which many are pending here. The large blocks that fit and were examined
  // may all be before one fence, while the newest are beyond it.
  if (many && enough_newest_beyond(in, r, *fences))
    return oldest;
  return nullptr;
}

pending_block const* block_reuse::oldest_that_serves(session const& in, alloc_request const& r) {
  pending_block const* oldest = nullptr;
  auto const note_older = [&](pending_block const& b) {
    of_.count_search(1);
    if (would_serve(b, r) && (!oldest || b.sequence < oldest->sequence))
      oldest = &b;
  };
  if (r.size_class >= 0) {
    in.first_pending(looks, [&](pending_block const& b) {
      note_older(b);
      return oldest != nullptr;
    });
  } else {
    in.pending_that_fit(r.rounded, looks, [&](pending_block const& b) {
      note_older(b);
      return b.bytes > 2 * r.rounded;
    });
  }
  return oldest;
}

// None: the stream may not wait for a user of the block, or has no fence to wait for.
std::optional<std::vector<clock::stamp>> block_reuse::fences_to_wait_for(session const& in, pending_block const& b) {
  std::vector<clock::stamp> fences;
  for (clock::stamp const s : b.stamps) {
    clock::stream_clock* const user = clock::find(s.stream);
    if (user && user->carries_collectives())
      return std::nullopt;
    if (!user || of_.ordered_or_complete(in.heap().home(), s))
      continue;
    fences.push_back({s.stream, user->fence_covering(s.n)});
    if (fences.back().n == 0)
      return std::nullopt;
  }
  return fences;
}

// Whether a wait for these fences leaves blocks that fit to the streams that use them.
bool block_reuse::enough_fit_beyond(session const& in, alloc_request const& r, std::span<clock::stamp const> fences) {
  std::size_t beyond = 0;
  in.pending_that_fit(r.rounded, looks, [&](pending_block const& b) {
    of_.count_search(1);
    beyond += blocks_beyond(fences, b, r);
    return beyond >= ahead;
  });
  return beyond >= ahead;
}

// Likewise, of the blocks that were freed last.
bool block_reuse::enough_newest_beyond(session const& in, alloc_request const& r,
                                       std::span<clock::stamp const> fences) {
  std::size_t beyond = 0;
  in.last_pending(looks, [&](pending_block const& b) {
    of_.count_search(1);
    beyond += blocks_beyond(fences, b, r);
    return beyond >= ahead_of_many;
  });
  return beyond >= ahead_of_many;
}

// Waits on the device for the users of one own block: of those that are large enough the smallest, of these
// the oldest. If none is large enough, it waits for the users of all.
std::size_t block_reuse::own_after_a_wait(stream_heap& mine, alloc_request const& r) {
  std::vector<clock::stamp> stamps;
  struct wanted_block {
    clock::stamp behind;
    address at;
    std::size_t bytes;
  };
  std::vector<wanted_block> wanted;  // for an observer
  {
    session const in(mine);
    auto const note_wanted = [&](pending_block const& b) {
      for (clock::stamp const s : b.stamps)
        wanted.push_back({s, b.block ? b.block->at : b.in_slab->start(b.index), b.bytes});
    };
    in.pending_that_fit(r.rounded, looks, [&](pending_block const& b) {
      of_.count_search(1);
      if (round_up(b.block->at, r.alignment) + r.rounded > b.block->end())
        return false;
      stamps = b.stamps;
      note_wanted(b);
      return true;
    });
    // No block is large enough by itself: neighbours may be, together.
    if (stamps.empty()) {
      stamps = in.newest_awaited();
      of_.count_search(stamps.size());
      if (of_.runtime.observer())
        in.each_pending(note_wanted);
    }
  }
  for (clock::stamp const s : stamps) {
    if (order_behind(mine, s) != ordering::waits)
      continue;
    for (wanted_block const& b : wanted) {
      if (b.behind.stream == s.stream)
        tell_wait(mine, s, b.at, b.bytes);
    }
  }
  if (stamps.empty())
    return 0;
  return session(mine).reclaim();
}

void* block_reuse::after_a_wait(stream_heap& mine, alloc_request const& r, std::size_t& gave) {
  // order_behind would refuse each wait, after a search for nothing.
  if (mine.home().carries_collectives())
    return nullptr;
  gave = own_after_a_wait(mine, r);
  // The caller searches its own memory again.
  if (gave)
    return nullptr;

  // Free blocks of other heaps: of those examined in a heap, the one freed first.
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  void* out = nullptr;
  // Also where blocks are pending: reclaimed, they may join free ones.
  heaps_.index.some(heap_index::at_least(bytes) | heap_index::waits, 0, [&](stream_heap& other) {
    if (&other == &mine || !heap_table::may_lend(other, mine))
      return false;
    clock::stamp oldest;
    {
      session in(other);
      // It may have gone to another pool before the lock.
      if (!heap_table::may_lend(other, mine))
        return false;
      oldest.stream = other.home().id();
      in.reclaim();
      in.some_free(bytes, looks, [&](heap_block const& p) {
        of_.count_search(1);
        if (round_up(p.at, alignment) + bytes <= p.end() && (!oldest.n || p.freed < oldest.n))
          oldest.n = p.freed;
      });
    }
    if (oldest.n == 0)
      return false;
    // Without a new wait, a search has found nothing there already.
    if (order_behind(mine, oldest) != ordering::waits)
      return false;
    out = from_others(mine, r, ~std::size_t{0});
    if (!out)
      return false;
    tell_wait(mine, oldest, reinterpret_cast<address>(out), bytes);
    return true;
  });
  return out;
}

}  // namespace weir::memory
