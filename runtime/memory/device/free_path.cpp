// Frees a block.
// Threads: as free_path.h.
#include "runtime/memory/device/free_path.h"

#include <algorithm>
#include <boost/container/small_vector.hpp>

#include "runtime/driver/allocation_observer.h"

namespace weir::memory {

// If the host has no memory to note the users, the free does not fail: the host waits for each user, so that
// nothing is left to note.
void free_path::deallocate(void* p, clock::timeline* last_use, source_location at) {
  if (!p || process_was_forked()) return;  // a child's copy of the parent's block: the parent's memory stays untouched
  for (;;) {
    try {
      return take_back(p, last_use, at);
    } catch (std::bad_alloc const&) {
      clock::timeline* const user = busy_user(p, last_use);
      if (!user || !user->synchronize().ok()) throw;
      forget_user(p, *user);
      if (last_use == user) last_use = nullptr;
    }
  }
}

clock::timeline* free_path::busy_user(void* p, clock::timeline* last_use) const noexcept {
  region* const r = of_.space.find(p);
  if (!r) return nullptr;
  stream_heap& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  block_ref const b = block_ref::find(*r, reinterpret_cast<address>(p));
  if (!b.live) return nullptr;
  clock::timeline& home = *m.home.load();
  auto const busy = [&](clock::timeline* t) { return t && t != &home && !of_.ordered_or_complete(home, t->now()); };
  slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
  clock::timeline* const its = b.cut ? (n ? n->home : nullptr) : b.whole->home;
  if (busy(its)) return its;
  clock::timeline* found = nullptr;
  b.each_mark([&](clock::timeline* t) {
    if (!found && busy(t)) found = t;
  });
  return found ? found : busy(last_use) ? last_use : nullptr;
}

void free_path::forget_user(void* p, clock::timeline& user) noexcept {
  region* const r = of_.space.find(p);
  stream_heap& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  block_ref const b = block_ref::find(*r, reinterpret_cast<address>(p));
  if (!b.live) return;
  b.unmark(user);
  auto const forget = [&](clock::timeline*& home, clock::timeline* own) {
    if (home == &user) home = own;
  };
  if (!b.cut) forget(b.whole->home, m.home.load());
  else if (slab::note* const n = b.cut->note_of(b.index)) forget(n->home, nullptr);
}

void free_path::take_back(void* p, clock::timeline* last_use, source_location at) {
  region* const r = of_.must_find(p, "deallocate", at);
  stream_heap& m = *r->owner.load();
  std::vector<clock::timeline*> to_fence;  // streams other than the home that used the block
  clock::timeline* at_home = nullptr;
  bool const used = last_use && last_use != m.home.load();
  thread_cache* const cache = used && !m.may_wait_in_outbox(*r, p, *last_use) ? nullptr : m.cache_here();
  {
    section const hold(m);
    block_ref const b = of_.must_locate(p, r, "deallocate", at);
    if (b.start != reinterpret_cast<address>(p)) {
      throw invalid_use("deallocate",
                        base::address_text(p) + " lies " + std::to_string(reinterpret_cast<address>(p) - b.start) +
                            " B inside the block at " + base::address_text(b.start),
                        "Free a block by the address that allocate returned: " + base::address_text(b.start), at);
    }
    if (of_.lost()) return;  // nothing runs there any more, and nothing is allocated again

    clock::timeline& home = *m.home.load();
    if (of_.runtime.witness()) [[unlikely]]
      tell_freed(b, home, last_use, at);
    boost::container::small_vector<clock::stamp, 4> stamps;
    clock::timeline* first_of = nullptr;  // the stream of the first stamp
    std::uint64_t since = 0;
    auto add = [&](clock::timeline* t) {
      if (!t) return;
      clock::stamp const s = t->now();
      if (t == &home) {
        since = s.n;
        return;
      }
      if (std::find(stamps.begin(), stamps.end(), s) != stamps.end() ||
          (!of_.deterministic && of_.ordered_or_complete(home, s, since)))
        return;
      if (stamps.empty()) first_of = t;
      stamps.push_back(s);
    };
    slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
    add(b.cut ? (n && n->home ? n->home : &home) : b.whole->home);
    b.each_mark(add);
    add(last_use);

    auto const pool = b.cut ? observe::size_pool::small : observe::size_pool::large;
    std::size_t const rounded = b.cut ? b.cut->size : b.whole->bytes;
    std::size_t const requested = b.cut ? b.cut->requested(b.index) : b.whole->requested;
    if (of_.announced) [[unlikely]]
      of_.machine.block_given_back(b.start);
    bool const someone_waits = !stamps.empty();
    bool due = false;
    bool const may_gather = stamps.size() == 1 && cache && b.cut && !n && m.may_wait_in_outbox(*r, p, *first_of);
    if (may_gather && m.post(*cache, {b.cut, b.index}, *first_of, stamps.front(), due)) {
      if (due) to_fence.push_back(first_of);
    } else if (someone_waits) {
      due |= of_.deterministic || m.held_since_fence + rounded >= m.fence_after(8);
      for (clock::stamp const s : stamps) {
        clock::timeline* const other = clock::find(s.stream);
        if (other && (due || other->alive() == clock::life::foreign)) to_fence.push_back(other);
      }
      std::uint64_t const first = stamps.front().stream;
      m.pending.push({b.cut ? nullptr : b.whole, b.cut, b.index, rounded, {}, since}, stamps);
      of_.tell_held(observe::action::held, b.start, rounded, first);
      b.cut ? b.cut->forget(b.index), m.small.hold(*b.cut, b.index) : (void)(b.whole->is = state::pending);
      m.counts.held(pool, rounded, requested);
      m.held_since_fence = due ? 0 : m.held_since_fence + rounded;
    } else {
      m.counts.freed(pool, rounded, requested);
      if (b.cut) {
        if (cache) m.spill(*cache, b.cut->size_class);
        if (m.small.give(*b.cut, b.index, home.now().n)) m.return_run(*b.cut);
      } else {
        m.pieces.give(*b.whole, home.now().n);
        if (cache) m.lock.offer(cache->own);
      }
      m.freed_since_fence += rounded;
      bool const others = heaps_.index.size() > 1;
      if (others && (home.alive() == clock::life::foreign || m.freed_since_fence >= m.fence_at_home_after())) {
        at_home = &home, m.freed_since_fence = 0;
        m.sought > 0 ? --m.sought : ++m.quiet;
      }
    }
  }
  // memory_statistics::fences counts fences for frees, and not those that a query or a wait records.
  auto const fence = [this](clock::timeline& t) {
    if (t.alive() != clock::life::retired && t.fence().ok()) of_.counts.fenced();
  };
  if (at_home) fence(*at_home);
  for (clock::timeline* const t : to_fence) fence(*t);
}

// For a checker: the streams whose work comes before the block's next use. Requires: the heap's lock.
void free_path::tell_freed(block_ref const& b, clock::timeline& home, clock::timeline* last_use,
                           source_location at) const {
  std::vector<driver::witness::user> users, ended;
  auto const add = [&](clock::timeline const* t) {
    if (t) (t->alive() == clock::life::retired ? ended : users).push_back({t->device(), t->handle()});
  };
  slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
  add(b.cut ? (n && n->home ? n->home : &home) : b.whole->home);
  b.each_mark(add);
  add(last_use);
  of_.runtime.witness()->freed(b.start, b.cut ? b.cut->requested(b.index) : b.whole->requested, {users, ended}, at);
}

void free_path::fence_what_came_free(clock::timeline& home) noexcept try {
  if (heaps_.index.size() < 2 || of_.lost()) return;
  std::uint64_t const now = home.now().n;
  bool due = false;
  heaps_.if_any(home, [&](stream_heap& m) {
    section const hold(m);
    bool const kept = std::ranges::any_of(m.caches, [&](thread_cache const* c) { return c->has_freed_at(now); });
    if (!kept && m.pieces.newest_given() < now && m.small.newest_freed() < now) return;
    m.freed_since_fence = 0;
    due = true;
  });
  if (due && home.fence().ok()) of_.counts.fenced();
} catch (std::bad_alloc const&) {  // then other streams also wait for the work to come
}

}  // namespace weir::memory
