// Frees a block.
// Threads: as free_path.h.
#include "runtime/memory/device/free_path.h"

#include <algorithm>

#include "runtime/driver/allocation_observer.h"

namespace weir::memory {

// If the host has no memory to note the users, the free does not fail: the host waits for each user, so that
// nothing is left to note.
memory_pool* free_path::deallocate(void* p, clock::stream_clock* last_use, source_location at) {
  if (!p || process_was_forked())
    return nullptr;  // a child's copy of the parent's block: the parent's memory stays
  attempt so_far;
  for (;;) {
    try {
      outcome const before = take_back(p, last_use, at, so_far);
      if (before.ask) {
        ask(*before.ask, at);
        so_far.asked.push_back(before.ask);
      } else if (before.wait_for) {
        so_far.waited_for.push_back(before.wait_for);
        bool const done = of_.clocks.synchronize(before.wait_for->now()).ok();
        if (!done && !of_.lost())
          throw std::bad_alloc();  // of a lost device nothing is allocated again
      } else {
        return before.drained;
      }
    } catch (std::bad_alloc const&) {
      if (std::exchange(so_far.waits, true))
        throw;
    }
  }
}

template <class Do>
void free_path::each_stamp(stream_heap& m, block_ref const& b, clock::stream_clock& its, clock::stream_clock* last_use,
                           std::uint64_t& since, Do act) const {
  clock::stream_clock& home = *m.home.load();
  auto const add_stamp = [&](clock::stream_clock* t) {
    clock::stamp const s = t->now();
    t == &home ? (void)(since = s.n) : act(s, *t);
  };
  // A capture may have recorded a use. On its own memory, the order inside says when that is over. Another block
  // stays with the graph, which may be launched at any time.
  auto const add_inside = [&](clock::stream_clock& lane) {
    graph_pools::one const graph = graphs_.known(lane);
    bool const own = graph.pool == m.pool.get();
    if (graph.pool)
      add_stamp(own ? &lane : graph.keeper);
    return own;
  };
  auto const add = [&](clock::stream_clock* t, bool inside) {
    if (t->alive() == clock::life::captured)
      return (void)add_inside(*t);
    if (t->stands_for())
      t = t->stands_for();  // its capture is over, or it was set aside
    clock::stream_clock* const lane = t->alive() == clock::life::retired ? nullptr : t->known_lane();
    if (!(lane && add_inside(*lane) && inside))
      add_stamp(t);
  };
  if (m.asleep.get())
    return;  // all its work was complete before
  add(&its, false);
  b.each_user([&](clock::stream_clock* t) { add(t, false); });
  if (last_use)
    add(last_use, true);
}

clock::stream_clock* free_path::busy_user(stream_heap& m, block_ref const& b, clock::stream_clock& its,
                                          clock::stream_clock* last_use, attempt const& so_far) const {
  clock::stream_clock& home = *m.home.load();
  std::uint64_t since = 0;
  clock::stream_clock* found = nullptr;
  each_stamp(m, b, its, last_use, since, [&](clock::stamp s, clock::stream_clock& t) {
    bool const waited_for = std::ranges::find(so_far.waited_for, &t) != so_far.waited_for.end();
    if (!found && !waited_for && !of_.ordered_or_complete(home, s))
      found = &t;
  });
  return found;
}

// Whether it is captured still, so that the pool of its capture is known. Of a capture that is spoiled nothing will
// run, nor on a lost device. A graph that goes on and cannot keep the block would write freed memory at each launch.
// Throws: driver_error, bad_alloc
void free_path::ask(clock::stream_clock& s, source_location at) const {
  bool const exists = s.alive() == clock::life::own || s.alive() == clock::life::foreign ||
                      (s.alive() == clock::life::borrowed && clock::named_in_call::is(s));
  auto const now = exists ? s.lane() : driver::result<clock::stream_clock*>{{}, s.known_lane()};
  // spoiled, or a handle that has gone
  if (now.is.what == driver::code::not_permitted || now.is.what == driver::code::invalid)
    return;
  clock::stream_clock* const lane = now.ok() ? now.value : s.known_lane();  // else as it was last seen
  if (!lane)
    return;
  try {
    (void)graphs_.of(*lane, at);
  } catch (invalid_use const&) {  // spoiled meanwhile
  } catch (device_lost const&) {
  } catch (driver_error const&) {
    // The handle of a borrowed stream that has ended names no stream, and a process that ends launches no graph.
    if (exists && !process_is_ending())
      throw;
  }
}

// Whatever may throw comes first. From the notices on, nothing does.
free_path::outcome free_path::take_back(void* p, clock::stream_clock* last_use, source_location at,
                                        attempt const& so_far) {
  region* const r = of_.must_find(p, "deallocate", at);
  stream_heap& m = *r->owner.load();
  boost::container::small_vector<clock::stream_clock*, 4> to_fence;  // streams other than the home that used the block
  clock::stream_clock* at_home = nullptr;
  outcome done;
  bool const used = last_use && last_use != m.home.load();
  thread_cache* const cache = used && !m.may_defer_free(*r, p, *last_use) ? nullptr : m.cache_here();
  {
    section const hold(m);
    block_ref const b = of_.must_locate(p, r, "deallocate", at);
    if (b.start != reinterpret_cast<address>(p)) {
      throw invalid_use("deallocate",
                        base::address_text(p) + " lies " + std::to_string(reinterpret_cast<address>(p) - b.start) +
                            " B inside the block at " + base::address_text(b.start),
                        "Free a block by the address that allocate returned: " + base::address_text(b.start), at,
                        error_id{159});
    }

    clock::stream_clock& home = *m.home.load();
    slab::note const* const n = b.in_slab ? b.in_slab->note_of(b.index) : nullptr;
    clock::stream_clock* const its = b.in_slab ? (n && n->home ? n->home : &home) : b.block->home;
    clock::stream_clock* to_ask = nullptr;
    std::size_t others = 0;
    auto const look = [&](clock::stream_clock* t) {
      others += t && t != &home;
      if (t && t->stands_for() && t->alive() == clock::life::retired)
        t = t->stands_for();
      if (t && t->seen_captured() && std::ranges::find(so_far.asked, t) == so_far.asked.end())
        to_ask = t;
    };
    look(its), b.each_user(look), look(last_use);
    if (to_ask) [[unlikely]]
      return {to_ask};

    boost::container::small_vector<clock::stamp, 4> stamps;
    if (so_far.waits) {
      if (auto* const busy = busy_user(m, b, *its, last_use, so_far))
        return {nullptr, busy};
    } else {
      std::size_t const most = 2 * (others + 1);  // with the keepers of graphs
      stamps.reserve(most), to_fence.reserve(most), m.pending.make_room(most);
    }
    if (of_.runtime.observer()) [[unlikely]]
      announce_free(b, *its, last_use, at);

    clock::stream_clock* first_of = nullptr;  // the stream of the first stamp
    std::uint64_t since = 0;
    auto const note = [&](clock::stamp s, clock::stream_clock& t) {
      if (std::find(stamps.begin(), stamps.end(), s) != stamps.end() ||
          (!of_.deterministic && of_.ordered_or_complete(home, s, since)))
        return;
      if (stamps.empty())
        first_of = &t;
      stamps.push_back(s);
    };
    if (!so_far.waits)
      each_stamp(m, b, *its, last_use, since, note);
    if (its->alive() == clock::life::borrowed)
      its->note_block(-1);
    auto const pool = b.in_slab ? observe::size_pool::small : observe::size_pool::large;
    std::size_t const rounded = b.in_slab ? b.in_slab->size : b.block->bytes;
    std::size_t const requested = b.in_slab ? b.in_slab->requested(b.index) : b.block->requested;
    if (m.asleep.get())
      m.counts.allocated(pool, rounded, requested);  // as stream_heap::count_asleep
    if (of_.announced) [[unlikely]]
      of_.machine.block_given_back(b.start);
    bool const someone_waits = !stamps.empty();
    bool due = false;
    bool const may_gather = stamps.size() == 1 && cache && b.in_slab && !n && m.may_defer_free(*r, p, *first_of);
    if (may_gather && m.defer_free(*cache, {b.in_slab, b.index}, *first_of, stamps.front(), due)) {
      if (due)
        to_fence.push_back(first_of);
    } else if (someone_waits) {
      due |= of_.deterministic || m.pending_since_fence + rounded >= m.fence_after(8);
      for (clock::stamp const s : stamps) {
        clock::stream_clock* const other = clock::find(s.stream);
        if (other && (other->alive() == clock::life::borrowed ? other->count_free(rounded) : due))
          to_fence.push_back(other);
      }
      // The block also waits for its home, which no call may name after its last user is done.
      if (home.alive() == clock::life::borrowed && home.count_free(rounded))
        at_home = &home;
      std::uint64_t const first = stamps.front().stream;
      m.pending.push({b.in_slab ? nullptr : b.block, b.in_slab, b.index, rounded, {}, since}, stamps);
      of_.record_pending(observe::action::free_pending, b.start, rounded, first);
      b.in_slab ? b.in_slab->forget(b.index), m.slots.hold(*b.in_slab, b.index) : (void)(b.block->is = state::pending);
      m.counts.freed_pending(pool, rounded, requested);
      m.pending_since_fence = due ? 0 : m.pending_since_fence + rounded;
    } else {
      m.counts.freed(pool, rounded, requested);
      if (b.in_slab) {
        if (cache)
          m.spill(*cache, b.in_slab->size_class);
        if (m.slots.give(*b.in_slab, b.index, home.now().n))
          m.return_run(*b.in_slab);
      } else {
        m.blocks.give(*b.block, home.now().n);
        if (cache && m.cacheable())
          m.lock.bias_to(cache->own);
      }
      m.freed_since_fence += rounded;
      bool const shares = heaps_.index.size() > 1;
      if (home.alive() == clock::life::borrowed ? home.count_free(rounded)
                                                : shares && m.freed_since_fence >= m.fence_at_home_after()) {
        at_home = &home, m.freed_since_fence = 0;
        m.wanted > 0 ? --m.wanted : ++m.unwanted;
      }
    }
    if (m.asleep.get() && m.pool.get()->free_asleep())
      done.drained = m.pool.get();
  }
  // memory_statistics::fences counts fences for frees, and not those that a query or a wait records.
  auto const fence = [this](clock::stream_clock& t) {
    if (t.alive() != clock::life::retired && t.fence().ok())
      of_.counts.fenced();
  };
  if (at_home)
    fence(*at_home);
  for (clock::stream_clock* const t : to_fence)
    fence(*t);
  return done;
}

// For a checker: the streams whose work comes before the block's next use; of a sleeping block no work does.
// Requires: the heap's lock.
void free_path::announce_free(block_ref const& b, clock::stream_clock& its, clock::stream_clock* last_use,
                              source_location at) const {
  std::vector<driver::allocation_observer::user> users, ended;
  bool const asleep = (b.in_slab ? b.in_slab->owner : b.block->in->owner.load())->asleep.get();
  auto const add = [&](clock::stream_clock const* t) {
    if (t && !asleep)
      (t->alive() == clock::life::retired ? ended : users).push_back({t->device(), t->handle()});
  };
  add(&its);
  b.each_user(add);
  add(last_use);
  of_.runtime.observer()->freed(b.start, b.in_slab ? b.in_slab->requested(b.index) : b.block->requested, {users, ended},
                                at);
}

void free_path::fence_what_came_free(clock::stream_clock& home) noexcept try {
  if (heaps_.index.size() < 2 || of_.lost())
    return;
  std::uint64_t const now = home.now().n;
  bool due = false;
  heaps_.each_of(home, [&](stream_heap& m) {
    section const hold(m);
    bool const kept = std::ranges::any_of(m.caches, [&](thread_cache const* c) { return c->has_freed_at(now); });
    if (!kept && m.blocks.newest_given() < now && m.slots.newest_freed() < now)
      return;
    m.freed_since_fence = 0;
    due = true;
  });
  if (due && home.fence().ok())
    of_.counts.fenced();
} catch (std::bad_alloc const&) {  // then other streams also wait for the work to come
}

}  // namespace weir::memory
