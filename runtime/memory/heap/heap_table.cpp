// Finds, makes and inherits heaps.
// Threads: as heap_table.h.
#include "runtime/memory/heap/heap_table.h"

#include "runtime/base/room.h"

namespace weir::memory {

stream_heap& heap_table::of(clock::stream_clock& t) {
  auto& near = recent_[t.id() % recent_.size()];
  if (stream_heap* const m = near.load(base::memory_order_acquire); m && m->home.load(base::memory_order_acquire) == &t)
    return *m;
  stream_heap& found = find(t);
  near.store(&found, base::memory_order_release);
  return found;
}

stream_heap& heap_table::find(clock::stream_clock& t) {
  {
    base::lock_guard hold(making_);
    auto const found = by_stream_.find(t.id());
    if (found != by_stream_.end()) return *found->second;
  }
  if (of_.clocks.any_ended()) ask_the_retired();
  base::lock_guard hold(making_);
  auto const found = by_stream_.find(t.id());
  if (found != by_stream_.end()) return *found->second;
  if (stream_heap* const left = of_.clocks.any_ended() ? inherit(t) : nullptr) return *left;
  auto made = std::make_unique<stream_heap>(of_, index, t);
  made->readers.store(readers_);
  index.make_room();
  base::make_room(heaps_);
  by_stream_.emplace(t.id(), made.get());
  heaps_.push_back(std::move(made));
  // all are updated only when their number has doubled, because each is locked
  bool const all = (heaps_.size() & (heaps_.size() - 1)) == 0;
  for (auto m = all ? heaps_.begin() : heaps_.end() - 1; heaps_.size() > 1 && m != heaps_.end(); ++m) {
    base::biased_lock share((*m)->lock);
    (*m)->share(of_.counts.shared());
  }
  index.add(*heaps_.back());
  return *heaps_.back();
}

void heap_table::ask_the_retired() {
  // otherwise a rank may be waiting for this thread
  bool const may_wait = of_.deterministic && of_.clocks.collectives_given().empty();
  index.each([&](stream_heap& m) {
    clock::stream_clock& stream = *m.home.load();
    if (stream.alive() != clock::life::retired) return;
    if (may_wait) m.finish();
    if (!of_.clocks.complete(stream.now())) (void)of_.clocks.poll(stream.now());
  });
}

// A retired stream leaves its heap, with all that is cached there, to the next stream.
stream_heap* heap_table::inherit(clock::stream_clock& heir) {
  for (auto const& m : heaps_) {
    if (m->home.load()->alive() != clock::life::retired) continue;  // changes under making_
    section const hold(*m);
    clock::stream_clock& old = *m->home.load();
    if (!of_.clocks.complete(old.now())) continue;
    // its blocks would count as blocks of the heir
    if (heir.alive() == clock::life::borrowed && m->counts.bytes_live() != 0) continue;
    for (thread_cache* c : m->caches) {
      c->revoke();
      (void)m->flush(*c);
    }
    m->reclaim();
    if (!m->pending.empty()) continue;
    // Threads know these caches by the old home, whose object a later stream may get.
    if (!m->caches.empty()) invalidate_fast_paths();
    by_stream_.emplace(heir.id(), m.get());
    by_stream_.erase(old.id());
    for (thread_cache* c : m->caches) m->empty(*c);
    m->blocks.forget_stamps(), m->slots.forget_stamps();  // they are no numbers of the new stream
    m->home.store(&heir), m->home_lifetime = heir.hold();
    m->readers.store(readers_);
    return m.get();
  }
  return nullptr;
}

std::vector<stream_heap*> heap_table::all() const {
  base::lock_guard hold(making_);
  std::vector<stream_heap*> all;
  all.reserve(heaps_.size());
  for (auto const& m : heaps_) all.push_back(m.get());
  return all;
}

// Pending blocks that are known to be complete become free only when a search looks at them.
std::size_t heap_table::reclaim_known() const {
  if (of_.deterministic) return 0;
  std::size_t bytes = 0;
  index.some(heap_index::waits, 0, [&](stream_heap& m) {
    if (m.counts.bytes_pending() == 0) return false;
    section const hold(m);
    bytes += m.reclaim();
    return false;
  });
  return bytes;
}

observe::cached_slots heap_table::cached() const {
  observe::cached_slots all;
  index.each([&](stream_heap const& m) {
    base::biased_lock const hold(m.lock);
    all += m.cached_before;
    for (thread_cache const* c : m.caches) all += c->counted();
  });
  return all;
}

std::vector<observe::heap_counters const*> heap_table::heap_counts() const {
  std::vector<observe::heap_counters const*> all;
  for (stream_heap const* m : this->all()) all.push_back(&m->counts);
  return all;
}

void heap_table::add_readers(stream_heap& one, std::uint64_t readers) {
  base::lock_guard const hold(making_);
  one.readers.store(one.readers.load() | readers);
}

bool heap_table::add_readers_of_all(std::uint64_t readers, std::size_t known) {
  base::lock_guard hold(making_);
  if (heaps_.size() != known) return false;  // one was added meanwhile
  for (auto const& m : heaps_) m->readers.store(m->readers.load() | readers);
  readers_ |= readers;
  return true;
}

void heap_table::remove_readers(std::uint64_t devices) {
  base::lock_guard const hold(making_);
  for (auto const& m : heaps_) m->readers.store(m->readers.load() & ~devices);
  readers_ &= ~devices;
}

void heap_table::remove_own_readers(clock::stream_clock& home) noexcept {
  base::lock_guard const hold(making_);
  auto const found = by_stream_.find(home.id());
  if (found != by_stream_.end()) found->second->readers.store(found->second->readers.load() & readers_);
}

}  // namespace weir::memory
