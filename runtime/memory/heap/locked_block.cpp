// A copy's look at its device memory: found and marked in one go,
// without a locked instruction for the thread that owns the lock.
// Threads: any.
#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {

namespace {

using users_of_block = std::vector<clock::timeline*>;
bool is_marked(users_of_block const& of, clock::timeline const& user) noexcept {
  for (auto const* const one : of) {  // one or two: a search written out for many is slower
    if (one == &user) return true;
  }
  return false;
}

allocator::range use_slot(slab& s, clock::timeline* home, address a, clock::timeline& user) {  // Throws: bad_alloc
  std::uint32_t const i = s.index(a);
  if (i >= s.slots || s.at(i) != slot::live) return {};
  slab::note* const n = s.note_of(i);
  std::uint32_t const unused = n && n->unused ? n->unused : slab::unused_of(s.byte(i), s.byte(i).get(), s.size);
  if (n && n->home) home = n->home;
  if (&user != home) s.mark(i, user);
  return {reinterpret_cast<void*>(s.start(i)), s.size - unused};  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

allocator::range device_allocator::use_located(stream_memory& m, region& r, address a, clock::timeline& user) noexcept
    try {
  if (slab* const s = r.slab_at(a)) return use_slot(*s, m.home.load(base::memory_order_relaxed), a, user);
  piece* const p = r.covering(a);
  if (!p || p->is != state::live) return {};
  if (&user != p->home && !is_marked(p->marks, user)) add_mark(p->marks, user);
  return {reinterpret_cast<void*>(p->at), p->requested};  // NOLINT(performance-no-int-to-ptr)
} catch (...) {
  return {};
}

allocator::range device_allocator::use(void const* p, clock::timeline& user) noexcept {
  region* const r = space_.find(p);
  return r ? use_in(*r, reinterpret_cast<address>(p), user) : range{};
}

allocator::range device_allocator::use_in(region& r, address a, clock::timeline& user) noexcept {
  stream_memory& m = *r.owner.load(base::memory_order_acquire);
  thread_table const& mine = thread_table::mine();
  auto const& e = mine.entries[m.way];
  bool const has_word = mine.holds() && e.memory == &m;
  if (has_word && m.lock.enter(e.cache->own)) {
    range const found = use_located(m, r, a, user);
    base::owned_mutex::leave(e.cache->own);
    return found;
  }
  section const hold(m);  // lists it, should it be this thread's from now on
  range const found = use_located(m, r, a, user);
  if (has_word) m.lock.offer(e.cache->own);
  return found;
}

}  // namespace weir::memory
