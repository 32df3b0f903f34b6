// A pool falls asleep and wakes.
// Threads: as pool_sleep.h.
#include "runtime/memory/supply/pool_sleep.h"

#include <algorithm>
#include <set>

namespace weir::memory {
namespace {
// Waits for a stream, or for its device: the driver is not asked about a stream that is borrowed or retired.
driver::status finish_one(device_context& of, clock::stamp s) {
  clock::stream_clock const* const t = clock::find(s.stream);
  if (!t)
    return {};
  if (t->alive() != clock::life::borrowed && t->alive() != clock::life::retired)
    return of.clocks.synchronize(s);
  if (of.clocks.complete(s))
    return {};
  return of.clocks.synchronize_device(t->device());
}
}  // namespace

driver::status pool_sleep::finish(std::vector<stream_heap*> const& heaps) {
  // By number: the order of addresses would differ from run to run.
  auto const by_number = [](clock::stream_clock* a, clock::stream_clock* b) { return a->id() < b->id(); };
  std::set<clock::stream_clock*, decltype(by_number)> users(by_number);
  std::vector<clock::stamp> stamps;
  for (stream_heap* const m : heaps) {
    session const in(*m);
    users.insert(&m->home());
    auto const newest = in.newest_awaited();
    stamps.insert(stamps.end(), newest.begin(), newest.end());
    auto const add = [&](block_ref const& b, clock::stream_clock* home) {
      if (home)
        users.insert(home);
      b.each_user([&](clock::stream_clock* t) { users.insert(&t->of_marks()); });
    };
    in.each_block([&](heap_block const& p) {
      if (p.is == state::live)
        add(block_ref::find(*p.in, p.at), p.home);
      if (p.is != state::slab)
        return;
      p.in_slab->each_live_slot(p, [&](slab const& s, std::uint32_t i) {
        slab::note const* const n = s.note_of(i);
        add(block_ref::find(*p.in, s.start(i)), n ? n->home : nullptr);
      });
    });
  }
  for (clock::stream_clock* const t : users)
    stamps.push_back(t->now());
  for (clock::stamp const s : stamps) {
    if (driver::status const is = finish_one(of_, s); !is.ok())
      return is;
  }
  for (stream_heap* const m : heaps)
    (void)session(*m).reclaim();
  return {};
}

// Collects the ranges of live bytes, each in one handle. Ranges of neighbours are joined, except under a checker:
// the rounding between two blocks belongs to neither, and a copy of it would be reported as a race.
void pool_sleep::plan(session const& in, sleeper& out) const {
  bool const exact = of_.runtime.observer() != nullptr;
  std::set<address> unusable;
  in.each_unusable([&](handle const& h) { unusable.insert(h.at); });
  std::map<address, std::size_t> parts;  // number in `out`, by the handle's address
  in.each_handle([&](handle const& h) {
    // An unusable handle has no live bytes. It stays mapped, because its record has to name its memory.
    if (unusable.contains(h.at))
      return;
    parts[h.at] = out.parts.size();
    out.parts.push_back({&in.heap(), h.at, h.bytes});
  });
  auto const add = [&](address at, std::size_t bytes) {
    while (bytes) {
      part& of = out.parts[std::prev(parts.upper_bound(at))->second];
      std::size_t const here = std::min(bytes, of.at + of.bytes - at);
      auto& ranges = of.ranges;
      if (!ranges.empty() && ranges.back().at + ranges.back().bytes == at)
        ranges.back().bytes += here;
      else
        ranges.push_back({at, here, 0});
      at += here, bytes -= here;
    }
  };
  in.each_block([&](heap_block const& p) {
    if (p.is == state::live)
      add(p.at, exact ? p.requested : p.bytes);
    if (p.is != state::slab)
      return;
    p.in_slab->each_slot(p, [&](slab const& s, std::uint32_t i) {
      if (s.at(i) != slot::live)
        return;
      // What lies in this part of the run.
      address const from = std::max(p.at, s.start(i));
      address const to = std::min(p.end(), s.start(i) + (exact ? s.requested(i) : s.size));
      if (from < to)
        add(from, to - from);
    });
  });
}

// Adds the heap's ranges. Ensures, if ok: no block of it comes or goes until it wakes.
driver::status pool_sleep::put_to_rest(stream_heap& m, sleeper& out) {
  for (;;) {
    if (auto const s = finish({&m}); !s.ok())
      return s;
    session in(m);
    (void)in.revoke_and_empty();
    in.end_ownership();
    (void)in.reclaim();
    clock::stamp newest{m.home().id(), 0};
    in.each_free([&](heap_block const& p) { newest.n = std::max(newest.n, p.freed); });
    // Other threads have freed blocks since the wait, which may still be in use.
    if (in.has_pending() || (newest.n && !of_.clocks.complete(newest)))
      continue;
    plan(in, out);
    in.fall_asleep();
    return {};
  }
}

// Enqueues the copies to the store, with a mark after each handle's.
driver::status pool_sleep::save(sleeper const& all, page_store& store) {
  if (auto const s = store.reserve(all.bytes); !s.ok())
    return s;
  for (std::size_t i = 0; i < all.parts.size(); ++i) {
    for (range const& r : all.parts[i].ranges) {
      if (auto const s = store.save(r.at, r.bytes, r.offset); !s.ok())
        return s;
    }
    if (auto const s = store.mark(i); !s.ok())
      return s;
  }
  return {};
}

// Ensures, if ok: all work on these heaps is complete, and the handles that were wholly free have gone.
driver::status pool_sleep::give_free_handles(std::vector<stream_heap*> const& heaps, std::size_t& given) {
  for (stream_heap* const m : heaps)
    (void)m->empty_caches();
  if (auto const s = finish(heaps); !s.ok())
    return s;
  for (stream_heap* const m : heaps)
    given += return_.of(*m, ~std::size_t{0});
  return {};
}

// Lists the pool as a sleeper, with a place in the store for each range. heaps: its heaps, read anew
driver::status pool_sleep::put_all_to_rest(memory_pool& pool, std::vector<stream_heap*>& heaps) try {
  heaps = heaps_.all(&pool);
  sleeper all;
  for (stream_heap* const m : heaps) {
    if (auto const s = put_to_rest(*m, all); !s.ok())
      return s;
  }
  invalidate_fast_paths();
  for (part& p : all.parts) {
    for (range& r : p.ranges) {
      r.offset = all.bytes;
      all.bytes += r.bytes;
    }
  }
  pool.put_asleep(all.bytes);
  asleep_.insert_or_assign(&pool, std::move(all));
  return {};
} catch (std::bad_alloc const&) {
  return {driver::code::out_of_memory};
}

// A part goes when its copies are complete, while those of later parts run.
pool_sleep::pages_given pool_sleep::give_pages(sleeper& its, page_store* store, std::size_t& given) {
  pages_given out;
  try {
    if (store)
      out.is = save(its, *store);
    for (; out.is.ok() && out.parts < its.parts.size(); ++out.parts) {
      if (store)
        out.is = store->wait(out.parts);
      if (!out.is.ok())
        break;
      its.parts[out.parts].saved = unmap(its.parts[out.parts], given);
    }
  } catch (std::bad_alloc const&) {
    out.is = {driver::code::out_of_memory};
  }
  return out;
}

// The stores use parts of the runtime, which has ended.
pool_sleep::~pool_sleep() {
  for (auto& [pool, its] : asleep_)
    (void)its.store.release();
}

driver::status pool_sleep::sleep(memory_pool& pool, std::unique_ptr<page_store>&& store, std::size_t& given) {
  base::lock_guard const alone(changing_);
  given = 0;
  if (!of_.space.maps())
    return {driver::code::not_supported};
  // Another call has put it to sleep.
  if (pool.is_asleep())
    return {};
  auto heaps = heaps_.all(&pool);
  if (auto const s = give_free_handles(heaps, given); !s.ok())
    return s;
  {
    mapping_lock::exclusive const stay(memory_.changes);
    pool.set_asleep(true);
  }
  if (auto const s = put_all_to_rest(pool, heaps); !s.ok()) {
    wake_heaps(heaps, pool);
    return s;
  }
  sleeper& its = asleep_.at(&pool);
  pages_given const went = give_pages(its, store.get(), given);
  if (!went.is.ok())
    its.copying = !copies_ended(store.get());
  // Some pages have gone, or copies may still use what is mapped, which must not go to others meanwhile. So the pool is
  // asleep, and the rest stays mapped.
  if (went.is.ok() || went.parts || its.copying) {
    its.store = std::move(store);
    return {};
  }
  asleep_.erase(&pool);
  wake_heaps(heaps, pool);
  return went.is;
}

// False: the driver keeps it mapped, or an alias of it.
bool pool_sleep::unmap(part const& p, std::size_t& given) {
  auto const alone = peers_.no_grants();
  mapping_lock::shared const going(memory_.changes);
  stream_heap& m = *p.in;
  aliased_handle const& known = m.reserved_handle(p.at);
  handle const h = known;
  if (!mover_.drop_aliases(known, 0))
    return false;
  driver::status const s = of_.machine.unmap(h.at, h.bytes);
  of_.note_status(s);
  if (!s.ok())
    return false;
  physical_memory::batch back;
  memory_.release(h.physical, h.bytes, back);
  session(m).put_asleep(p.at);
  of_.counts.refund(h.bytes - back.orphaned);
  given += h.bytes - back.orphaned;
  return true;
}

// Every block is again as it was before the pool fell asleep. Requires: all its handles are mapped.
void pool_sleep::wake_heaps(std::vector<stream_heap*> const& heaps, memory_pool& pool) {
  for (stream_heap* const m : heaps) {
    session in(*m);
    if (m->is_asleep())
      in.wake_up();
  }
  pool.set_asleep(false);
}

bool pool_sleep::copies_ended(page_store* store) const {
  auto const over = [](driver::status s) { return s.ok() || s.what == driver::code::lost; };
  return !store || over(store->wait_all()) || over(of_.clocks.synchronize_device(of_.device));
}

driver::status pool_sleep::finish_copies(sleeper& its) {
  if (!its.copying)
    return {};
  driver::status const s = of_.clocks.synchronize_device(of_.device);
  its.copying = !s.ok();
  return s;
}

// Joins neighbours that sleep into parts of up to `most` bytes, each to be one handle.
// Throws: bad_alloc, nothing changed
void pool_sleep::join(sleeper& its, std::size_t most) const {
  std::vector<part> out;
  for (part const& p : its.parts) {
    session const in(*p.in);
    region const* const r = of_.space.find(reinterpret_cast<void const*>(p.at));
    auto const continues = [&](part const& before) {
      if (before.in != p.in || before.at + before.bytes != p.at)
        return false;
      // A free page that could not be dropped stays alone: the index of whole handles knows it.
      if (before.ranges.empty() || p.ranges.empty())
        return false;
      // No handle crosses the start of a region, or of its part for runs.
      if (before.at < r->base || p.at == r->runs)
        return false;
      handle const left = in.handle_at(before.at), h = in.handle_at(p.at);
      if (!left.asleep || !h.asleep || left.readers != h.readers || before.saved != p.saved)
        return false;
      std::size_t const most_here = p.in->readers() ? std::max(most, of_.space.handles_that_stay().most) : most;
      return before.bytes + p.bytes <= most_here;
    };
    if (out.empty() || !continues(out.back())) {
      out.push_back(p);
      continue;
    }
    part& before = out.back();
    before.bytes += p.bytes;
    before.ranges.insert(before.ranges.end(), p.ranges.begin(), p.ranges.end());
  }
  its.parts = std::move(out);
}

driver::status pool_sleep::map(part& p, std::size_t& orphaned) {
  handle h;
  std::uint64_t readers = 0;
  {
    session const in(*p.in);
    h = in.handle_at(p.at);
    readers = peers_.living((h.readers | p.in->readers()) & ~of_.own_bit());
  }
  readers |= of_.own_bit();
  auto const grant = [&] {
    return readers != of_.own_bit() ? of_.machine.grant_all(h.at, h.bytes, readers)
                                    : of_.machine.grant(h.at, h.bytes, of_.device);
  };
  // It stayed mapped, perhaps without access.
  if (!h.asleep) {
    if (h.readers & of_.own_bit())
      return {};
    driver::status const s = grant();
    session in(*p.in);
    if (s.ok())
      in.note_readers(p.at, readers);
    return s;
  }
  h.bytes = p.bytes;
  auto const got = of_.machine.create(of_.device, h.bytes);
  if (!got.ok())
    return got.is;
  h.physical = got.value;
  if (auto const s = of_.machine.map(h.at, h.bytes, h.physical); !s.ok()) {
    physical_memory::batch back;
    memory_.release(h.physical, h.bytes, back);
    orphaned += back.orphaned;
    return s;
  }
  // Noted before the grant, which may be refused: undo() unmaps what is mapped.
  p.made = h;
  p.made.readers = 0;
  driver::status const s = grant();
  if (s.ok())
    p.made.readers = readers;
  return s;
}

// What is live now, with its place in the store. Returns: bytes of handles that have to come back
std::size_t pool_sleep::plan_again(std::vector<stream_heap*> const& heaps, sleeper& its) {
  sleeper now;
  std::size_t need = 0;
  for (stream_heap* const m : heaps) {
    session const in(*m);
    plan(in, now);
    in.each_handle([&](handle const& h) { need += h.asleep ? h.bytes : 0; });
  }
  std::map<address, part const*> before;
  for (part const& p : its.parts)
    before[p.at] = &p;
  for (part& p : now.parts) {
    auto const next = before.upper_bound(p.at);
    // It lies in no earlier part: it was unusable when the pool fell asleep, and stayed mapped.
    if (next == before.begin() || p.at - std::prev(next)->first >= std::prev(next)->second->bytes)
      continue;
    part const& was = *std::prev(next)->second;
    p.saved = was.saved;
    for (range& r : p.ranges) {
      auto const in = std::prev(std::ranges::upper_bound(was.ranges, r.at, {}, &range::at));
      r.offset = in->offset + (r.at - in->at);
    }
  }
  its.parts = std::move(now.parts);
  return need;
}

// As growth: free handles go before new ones come. False: nothing is charged.
bool pool_sleep::charge_for_a_wake(memory_pool& pool, std::size_t need) {
  if (pool.room() < need)
    return false;
  std::size_t const after = of_.counts.reserved() + need;
  std::size_t const most = bound_.most(bound_.now(), need);
  if (after > most)
    (void)return_.some(after - most);
  if (memory_.charge(pool, need))
    return true;
  // The device has less than the bound allows.
  if (return_.some(need) == 0)
    return false;
  return memory_.charge(pool, need);
}

// Copies of a part run while the next one is mapped.
driver::status pool_sleep::map_and_restore(sleeper& its, page_store* store, std::size_t& orphaned) try {
  for (part& p : its.parts) {
    if (auto const s = map(p, orphaned); !s.ok())
      return s;
    // What stayed mapped has its bytes.
    if (!store || !p.saved)
      continue;
    for (range const& r : p.ranges) {
      if (auto const s = store->restore(r.at, r.bytes, r.offset); !s.ok())
        return s;
    }
  }
  if (!store)
    return {};
  return store->wait_all();
} catch (std::bad_alloc const&) {
  return {driver::code::out_of_memory};
}

bool pool_sleep::is_asleep(memory_pool const& pool) {
  base::lock_guard const alone(changing_);
  return pool.is_asleep();
}

driver::status pool_sleep::wake(memory_pool& pool) {
  std::unique_ptr<page_store> over;  // ends without the lock
  base::lock_guard const alone(changing_);
  // Another call has woken it.
  if (!pool.is_asleep())
    return {};
  auto const known = asleep_.find(&pool);
  if (known == asleep_.end())
    return {driver::code::invalid};
  sleeper& its = known->second;
  page_store* const store = its.store.get();
  // Copies of a sleep that failed may still read what stayed mapped.
  if (auto const s = finish_copies(its); !s.ok())
    return s;

  auto const readers_stay = peers_.no_grants();
  auto const heaps = heaps_.all(&pool);
  for (stream_heap* const m : heaps)
    forget_free_handles(*m);
  std::size_t const need = plan_again(heaps, its);
  std::size_t const pages_a_handle = store ? store->pages_a_handle() : page_store::usual_pages;
  join(its, pages_a_handle * of_.space.page_bytes());
  if (!charge_for_a_wake(pool, need))
    return {driver::code::out_of_memory};

  std::size_t orphaned = 0;
  mapping_lock::shared const coming(memory_.changes);
  if (auto const s = map_and_restore(its, store, orphaned); !s.ok()) {
    of_.note_status(s);
    its.copying = !copies_ended(store);
    undo(its, pool, need, orphaned, !its.copying);
    return s;
  }
  // From here on nothing is refused.
  of_.counts.gave(need, 0);
  for (part& p : its.parts) {
    if (p.made.bytes)
      session(*p.in).adopt(p.made);
  }
  wake_heaps(heaps, pool);
  over = std::move(its.store);
  asleep_.erase(known);
  return {};
}

// The free handles of a heap: records of those without memory go, and those that stayed mapped stay free.
void pool_sleep::forget_free_handles(stream_heap& m) {
  session in(m);
  auto const still_mapped = in.drop_sleeping();
  for (released const& g : still_mapped)
    in.release(g);
}

// What was mapped goes again. What the driver keeps mapped, or copies may still fill, is filled at the next try.
void pool_sleep::undo(sleeper& its, memory_pool& pool, std::size_t charged, std::size_t orphaned,
                      bool copies_are_over) {
  physical_memory::batch back;
  std::size_t kept = 0;
  for (part& p : its.parts) {
    if (!p.made.bytes)
      continue;
    handle const h = std::exchange(p.made, {});
    if (copies_are_over && of_.machine.unmap(h.at, h.bytes).ok()) {
      memory_.release(h.physical, h.bytes, back);
      continue;
    }
    kept += h.bytes;
    session(*p.in).adopt(h);
  }
  // What stays mapped stays charged to the device and to the pool. An orphan stays charged to the device alone.
  orphaned += back.orphaned;
  of_.counts.gave(kept + orphaned, charged - kept - orphaned);
  pool.refund(charged - kept);
}

std::size_t pool_sleep::bytes_to_map(memory_pool const& pool) const {
  std::size_t all = 0;
  for (stream_heap* const m : heaps_.all(&pool)) {
    session const in(*m);
    in.each_handle([&](handle const& h) { all += h.asleep ? h.bytes : 0; });
  }
  return all;
}

void pool_sleep::return_what_is_free(stream_heap& m) {
  auto mapped = session(m).drop_sleeping();
  for (released& g : mapped)
    (void)return_.one(m, g);
}

void pool_sleep::drop(memory_pool& pool) noexcept try {
  base::lock_guard const alone(changing_);
  auto const known = asleep_.find(&pool);
  // Another thread has woken it meanwhile, and may have put it to sleep again.
  if (known == asleep_.end() || pool.has_asleep())
    return;
  if (!finish_copies(known->second).ok())
    return;
  if (known->second.store)
    known->second.store->drop();
  pool.put_asleep(0);
  auto const readers_stay = peers_.no_grants();
  mapping_lock::shared const going(memory_.changes);
  for (stream_heap* const m : heaps_.all(&pool))
    return_what_is_free(*m);
} catch (std::bad_alloc const&) {}  // what stayed mapped goes when the pool wakes or ends

void pool_sleep::end(memory_pool const& pool) noexcept try {
  std::unique_ptr<page_store> over;  // ends without the lock
  base::lock_guard const alone(changing_);
  if (auto const known = asleep_.find(&pool); known != asleep_.end()) {
    over = std::move(known->second.store);
    if (!finish_copies(known->second).ok())
      return;
    asleep_.erase(known);
  }
  auto const readers_stay = peers_.no_grants();
  mapping_lock::shared const going(memory_.changes);  // another thread may end it too: then its heaps are others'
  for (stream_heap* const m : heaps_.all(&pool)) {
    if (!m->is_asleep())
      continue;
    return_what_is_free(*m);
    session in(*m);
    bool sleeps = false;  // not dropped: no host memory
    in.each_handle([&](handle const& h) { sleeps |= h.asleep; });
    if (!in.holds_blocks() && !sleeps)
      in.wake_up();
  }
} catch (std::bad_alloc const&) {}  // as after a refused call: again with the next empty_cache()

}  // namespace weir::memory
