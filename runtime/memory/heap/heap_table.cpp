// Finds, makes and inherits heaps.
// Threads: as heap_table.h.
#include "runtime/memory/heap/heap_table.h"

#include <algorithm>

#include "runtime/base/room.h"

namespace weir::memory {

namespace {
constinit base::mutex numbering{base::quiet};
constinit std::uint64_t last_number = 0;  // of tables and of pools; under numbering
std::uint64_t new_number() noexcept {
  base::lock_guard const hold(numbering);
  return ++last_number;
}
}  // namespace

heap_table::heap_table(device_context& of)
    : of_(of),
      number_(new_number()),
      rest_(number_, 0, memory_pool::kind::rest, "", 0),
      left_(number_, 0, memory_pool::kind::left, "pools that ended", 0) {}

memory_pool& heap_table::pool_here() const noexcept {
  memory_pool* const chosen = thread_caches::in_force(number_);
  return chosen ? *chosen : rest_;
}

memory_pool& heap_table::add_pool(memory_pool::kind is, std::string name, std::size_t limit) {
  base::lock_guard const hold(making_);
  base::make_room(pools_);
  base::make_room(ended_, pools_.size() + ended_.size() + 1);  // so that the end of a pool needs none
  // An ended pool's object serves again, but not one of the newest: threads may still look at these.
  auto const newest = ended_.end() - static_cast<std::ptrdiff_t>(std::min(kept_ended, ended_.size()));
  auto const again = std::find_if(ended_.begin(), newest, [&](auto const& p) { return p->is == is; });
  if (again == newest) {
    pools_.push_back(std::make_unique<memory_pool>(number_, new_number(), is, std::move(name), limit));
  } else {
    (*again)->begin_again(new_number(), std::move(name), limit);
    pools_.push_back(std::move(*again));
    ended_.erase(again);
  }
  return *pools_.back();
}

void heap_table::close_pool(memory_pool& p) noexcept {
  p.close();
  {
    base::lock_guard const hold(making_);
    for (auto const& m : heaps_) {
      if (&m->pool() != &p)
        continue;
      session in(*m);
      (void)in.revoke_and_empty();
      in.end_ownership();
    }
  }
  invalidate_fast_paths();
}

void heap_table::end_pool(memory_pool& p) noexcept {
  p.end();
  {
    base::lock_guard const hold(making_);
    for (auto const& m : heaps_) {
      // One that is asleep still stays in the pool: its blocks can only be freed, or it could not wake.
      if (&m->pool() != &p || m->is_asleep())
        continue;
      session in(*m);
      in.move_to(left_);
      auto const mapped = static_cast<std::size_t>(m->bytes_mapped());
      left_.take_over(mapped);
      p.refund(mapped);
      in.free_left_behind();
      (void)in.revoke_and_empty();
      in.end_ownership();
    }
    any_left_.store(true);
    auto const owner = std::ranges::find(pools_, &p, &std::unique_ptr<memory_pool>::get);
    bool const has_heaps = std::ranges::any_of(heaps_, [&](auto const& m) { return &m->pool() == &p; });
    if (owner != pools_.end() && !has_heaps) {
      ended_.push_back(std::move(*owner));  // there is room
      pools_.erase(owner);
    }
  }
  invalidate_fast_paths();
}

std::vector<stream_heap*> heap_table::left_idle(std::size_t page) const {
  base::lock_guard const hold(making_);
  std::vector<stream_heap*> all;
  for (auto const& m : heaps_) {
    if (&m->pool() == &left_ && !m->bytes_live() && m->bytes_mapped() > static_cast<std::int64_t>(page))
      all.push_back(m.get());
  }
  return all;
}

std::vector<memory_pool*> heap_table::ended_asleep() const {
  base::lock_guard const hold(making_);
  std::vector<memory_pool*> all;
  for (auto const& m : heaps_)
    if (memory_pool* const p = &m->pool(); p->is_asleep() && p->has_ended() && !std::ranges::count(all, p))
      all.push_back(p);
  return all;
}

void heap_table::reset_peaks_of_pools() noexcept {
  base::lock_guard const hold(making_);
  for (auto const& p : pools_)
    p->reset_peak();
  left_.reset_peak();
}

std::vector<memory_pool const*> heap_table::pools() const {
  base::lock_guard const hold(making_);
  std::vector<memory_pool const*> all;
  for (auto const& p : pools_) {
    if (!p->has_ended())
      all.push_back(p.get());
  }
  if (left_.now().charged)
    all.push_back(&left_);
  return all;
}

stream_heap* heap_table::recent(clock::stream_clock const& t, memory_pool const& pool) const noexcept {
  stream_heap* const m = recent_[(t.id() + pool.number()) % recent_.size()].load(base::memory_order_acquire);
  bool const its = m && &m->home() == &t && &m->pool() == &pool;
  return its ? m : nullptr;
}

stream_heap& heap_table::of(clock::stream_clock& t, memory_pool& pool) {
  if (stream_heap* const m = recent(t, pool))
    return *m;
  stream_heap& found = find(t, pool);
  recent_[(t.id() + pool.number()) % recent_.size()].store(&found, base::memory_order_release);
  return found;
}

stream_heap* heap_table::in(clock::stream_clock const& t, memory_pool const& pool) const {
  auto const found = by_stream_.find(t.id());
  if (found == by_stream_.end())
    return nullptr;
  auto const m = std::ranges::find_if(found->second, [&](stream_heap* h) { return &h->pool() == &pool; });
  return m == found->second.end() ? nullptr : *m;
}

stream_heap* heap_table::if_made(clock::stream_clock const& t, memory_pool const& pool) const noexcept {
  if (stream_heap* const m = recent(t, pool))
    return m;
  base::lock_guard const hold(making_);
  return in(t, pool);
}

bool heap_table::have_own_readers(std::vector<stream_heap*> const& of_stream) const noexcept {
  return !of_stream.empty() && of_stream.front()->readers() != readers_;
}

bool heap_table::has_own_readers(clock::stream_clock const& t) const noexcept {
  base::lock_guard const hold(making_);
  auto const found = by_stream_.find(t.id());
  return found != by_stream_.end() && have_own_readers(found->second);
}

std::uint64_t heap_table::readers_for(std::vector<stream_heap*> const& of_stream) const noexcept {
  return of_stream.empty() ? readers_ : of_stream.front()->readers();
}

std::uint64_t heap_table::readers_of(clock::stream_clock const& t) const noexcept {
  base::lock_guard const hold(making_);
  auto const found = by_stream_.find(t.id());
  return found == by_stream_.end() ? readers_ : readers_for(found->second);
}

clock::stream_clock& heap_table::shared_home() {
  if (clock::stream_clock* const known = shared_home_.load(base::memory_order_acquire))
    return *known;
  base::lock_guard const hold(making_);
  if (!shared_home_.load())
    shared_home_.store(&of_.clocks.make_idle(of_.device), base::memory_order_release);
  return *shared_home_.load();
}

stream_heap* heap_table::existing_or_left(clock::stream_clock& t, memory_pool& pool) {
  if (stream_heap* const found = in(t, pool))
    return found;
  // inherit() needs this entry, with room.
  auto& of_stream = by_stream_[t.id()];
  base::make_room(of_stream);
  if (!of_.clocks.any_ended() && !any_left_.load())
    return nullptr;
  // The handles of another stream's heap are not open to readers that this stream alone has.
  if (have_own_readers(of_stream))
    return nullptr;
  return inherit(t, pool);
}

stream_heap* heap_table::inherited(clock::stream_clock& t, memory_pool& pool) {
  if (!of_.clocks.any_ended() && !any_left_.load())
    return nullptr;
  ask_the_retired();
  base::lock_guard const hold(making_);
  if (pool.has_ended())
    return nullptr;
  stream_heap* const found = existing_or_left(t, pool);
  if (!found && by_stream_.at(t.id()).empty())  // existing_or_left() made the entry
    by_stream_.erase(t.id());
  return found;
}

stream_heap& heap_table::find(clock::stream_clock& t, memory_pool& pool) {
  if (stream_heap* const found = if_made(t, pool))
    return *found;
  if (of_.clocks.any_ended() || any_left_.load())
    ask_the_retired();
  base::lock_guard hold(making_);
  memory_pool& in_force = pool.has_ended() ? rest_ : pool;  // it has ended during the call
  if (stream_heap* const found = existing_or_left(t, in_force))
    return *found;
  auto& of_stream = by_stream_[t.id()];  // with room
  auto made = std::make_unique<stream_heap>(of_, index, t, in_force);
  made->readers_.store(readers_for(of_stream));
  index.make_room();
  base::make_room(heaps_);
  of_stream.push_back(made.get());
  heaps_.push_back(std::move(made));
  if (heaps_.size() > 1) {
    // Each is locked for it: all share anew only when their number has doubled, else the new one alone.
    auto first = heaps_.end() - 1;
    bool const is_doubled = (heaps_.size() & (heaps_.size() - 1)) == 0;
    if (is_doubled)
      first = heaps_.begin();
    for (auto m = first; m != heaps_.end(); ++m)
      (*m)->share(of_.counts.shared());
  }
  index.add(*heaps_.back());
  return *heaps_.back();
}

bool heap_table::serves(excluded const& in, clock::stream_clock const& home, memory_pool const& pool) const noexcept {
  stream_heap const& m = in.heap();
  memory_pool const* const its = &m.pool();
  // What names an ended pool is served from the rest.
  return &m.home() == &home && (its == &pool || (its == &rest_ && pool.has_ended()));
}

void heap_table::ask_the_retired() {
  // In deterministic mode the answer must not depend on timing, so that the call waits. Beside collectives it
  // does not, because a rank may be waiting for this thread.
  bool const may_wait = of_.waits_for_all();
  index.each([&](stream_heap& m) {
    clock::stream_clock& stream = m.home();
    if (stream.alive() != clock::life::retired)
      return;
    if (may_wait)
      m.finish();
    if (!of_.clocks.complete(stream.now()))
      (void)of_.clocks.poll(stream.now());
  });
}

namespace {
// Whether a handle is on its way out of the heap: it is charged to the heap's pool until then.
bool gives_a_handle(excluded const& in) {
  bool found = false;
  in.each_block([&](heap_block const& p) { found |= p.is == state::reserved; });
  return found;
}

// Streams that are captured or retired get no more work by themselves.
bool goes_on(clock::stream_clock const& s) noexcept {
  return s.alive() != clock::life::retired && s.alive() != clock::life::captured;
}
}  // namespace

// Blocks in use count as blocks of the heir, in the pool that they are in.
bool heap_table::may_inherit(excluded const& in, clock::stream_clock& heir, memory_pool const& pool) const {
  stream_heap const& m = in.heap();
  clock::stream_clock& old = m.home();
  bool const empty = m.bytes_live() == 0, comes_in = &m.pool() != &pool;
  // From another pool come free pages alone, and none that must stay there or is on its way out.
  if (comes_in && (m.rules().pages_stay || pool.is_asleep() || !empty || gives_a_handle(in)))
    return false;
  // What is free in a graph's pool serves no other pool, so that it gets a page at most.
  auto const mapped = static_cast<std::size_t>(m.bytes_mapped());
  if (comes_in && pool.rules().captured && mapped > of_.space.page_bytes())
    return false;
  // Such a pool maps the one handle of its limit among blocks, and its runs lie there.
  if (comes_in && pool.rules().one_handle && (mapped || in.has_runs()))
    return false;
  if (heir.alive() == clock::life::borrowed && !empty)
    return false;
  // It stays with its stream, which has not retired.
  if (&old == &heir && old.alive() != clock::life::retired)
    return true;
  // Whether its work is complete, use_is_complete() asks later. In deterministic mode that decides nothing.
  if (goes_on(old))
    return !of_.deterministic;
  return of_.clocks.complete(old.now());
}

// Whether another stream may use what is free there. The home's later work uses no block of an empty heap, so that the
// last free tells when all use is complete. It does not ask what the home is: that may change at any time.
// Requires: may_inherit(), that no cache has a slot
bool heap_table::use_is_complete(session const& in, clock::stream_clock const& heir) const {
  return &in.heap().home() == &heir || of_.clocks.complete(in.newest_freed());
}

namespace {
// Whether blocks of an ended pool may wait for their users in the heap of that one. Their stamps mean nothing to
// another stream. A graph's launches write at any later time, and what a graph holds comes free with it alone. The
// pool's limit counts what waits.
bool may_wait_in(memory_pool const& pool, excluded const& in, clock::stream_clock const& old,
                 clock::stream_clock const& heir) {
  if (&old != &heir || pool.rules().captured || pool.now().limit)
    return false;
  bool held_by_a_graph = false;
  in.each_pending([&](pending_block const& b) {
    for (clock::stamp const s : b.stamps) {
      clock::stream_clock const* const user = clock::find(s.stream);
      held_by_a_graph |= user && user->alive() == clock::life::captured;
    }
  });
  return !held_by_a_graph;
}
}  // namespace

// A retired stream leaves its heap, with all that is cached there, to the next stream, and so does an ended pool. What
// lies in the pool already comes first: a graph's free blocks serve no other heap.
stream_heap* heap_table::inherit(clock::stream_clock& heir, memory_pool& pool) {
  for (bool const in_pool : {true, false}) {
    for (auto const& m : heaps_) {
      bool const is_in_pool = &m->pool() == &pool;
      if (is_in_pool == in_pool && takes_over(*m, heir, pool))
        return m.get();
    }
  }
  return nullptr;
}

bool heap_table::takes_over(stream_heap& m, clock::stream_clock& heir, memory_pool& pool) {
  memory_pool& its = m.pool();
  bool const left_by_a_pool = &its == &left_;
  bool const left_by_a_stream = m.home().alive() == clock::life::retired;
  if ((!left_by_a_stream && !left_by_a_pool) || its.is_asleep())
    return false;
  if (m.is_shared() && !left_by_a_pool)
    return false;  // its streams go on
  session in(m);
  if (m.is_called() || !may_inherit(in, heir, pool))
    return false;
  clock::stream_clock& old = m.home();
  // Deferred frees become pending, and complete blocks become free: then it is known what still waits.
  in.shut_and_flush();
  in.reclaim();
  // While the home is the old one: its stamps are on what caches hold.
  in.empty_shut();
  if (in.has_pending() && !may_wait_in(pool, in, old, heir))
    return false;
  if (!use_is_complete(in, heir))
    return false;
  auto const mapped = static_cast<std::size_t>(m.bytes_mapped());
  if (&its != &pool && !pool.charge(mapped))
    return false;
  // Threads know these caches by the old home, whose object a later stream may get.
  if (in.has_caches())
    invalidate_fast_paths();
  by_stream_.at(heir.id()).push_back(&m);  // there is room
  auto const of_old = by_stream_.find(old.id());
  of_old->second.erase(std::ranges::find(of_old->second, &m));
  if (of_old->second.empty())
    by_stream_.erase(of_old);
  if (&its != &pool) {
    its.refund(mapped);
    in.move_to(pool);
  }
  if (&old != &heir)
    in.move_to(heir, readers_);
  return true;
}

std::vector<stream_heap*> heap_table::all(memory_pool const* of) const {
  base::lock_guard hold(making_);
  std::vector<stream_heap*> all;
  all.reserve(heaps_.size());
  for (auto const& m : heaps_) {
    if (!of || &m->pool() == of)
      all.push_back(m.get());
  }
  return all;
}

// Pending blocks that are known to be complete become free only when a search looks at them.
std::size_t heap_table::reclaim_known() const {
  if (of_.deterministic)
    return 0;
  std::size_t bytes = 0;
  index.some(heap_index::waits, 0, [&](stream_heap& m) {
    if (m.bytes_pending() == 0)
      return false;
    bytes += session(m).reclaim();
    return false;
  });
  return bytes;
}

observe::cached_slots heap_table::cached() const {
  observe::cached_slots all;
  index.each([&](stream_heap& m) { all += quiet_session(m).cached_slots(); });
  return all;
}

std::vector<observe::heap_counters const*> heap_table::heap_counts() const {
  std::vector<observe::heap_counters const*> all;
  for (stream_heap const* m : this->all())
    all.push_back(&m->counts_);
  return all;
}

heap_table::counted heap_table::counts_of(memory_pool const& pool) const {
  counted out;
  for (stream_heap* const m : all(&pool)) {
    quiet_session const in(*m);
    out.counts.push_back(&m->counts_);
    out.cached += in.cached_slots();
    out.mapped += static_cast<std::size_t>(m->bytes_mapped());
  }
  return out;
}

bool heap_table::add_readers(clock::stream_clock& home, std::uint64_t readers, std::span<stream_heap* const> opened) {
  base::lock_guard const hold(making_);
  auto const found = by_stream_.find(home.id());
  if (found == by_stream_.end())
    return opened.empty();
  // One was made or inherited meanwhile.
  if (!std::ranges::equal(found->second, opened))
    return false;
  for (stream_heap* const m : found->second)
    m->readers_.store(m->readers() | readers);
  return true;
}

bool heap_table::add_readers_of_all(std::uint64_t readers, std::size_t known) {
  base::lock_guard hold(making_);
  if (heaps_.size() != known)
    return false;  // one was added meanwhile
  for (auto const& m : heaps_)
    m->readers_.store(m->readers() | readers);
  readers_ |= readers;
  return true;
}

void heap_table::remove_readers(std::uint64_t devices) {
  base::lock_guard const hold(making_);
  for (auto const& m : heaps_)
    m->readers_.store(m->readers() & ~devices);
  readers_ &= ~devices;
}

void heap_table::remove_own_readers(clock::stream_clock& home) noexcept {
  each_of(home, [&](stream_heap& m) { m.readers_.store(m.readers() & readers_); });
}

}  // namespace weir::memory
