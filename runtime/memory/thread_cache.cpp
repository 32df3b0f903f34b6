// The seldom walked half of thread_cache.h: caches made, filled, spilled, emptied and left behind.
// Threads: as thread_cache.h. The registry's lock is taken before a memory's.
#include "runtime/memory/thread_cache.h"

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/memory/device_allocator.h"

namespace weir::memory {
namespace {

// Which memory a cache is of changes under this lock alone, so that a thread and a memory may end at the same time.
// Caches are never freed: a thread may look at one whose memory has ended.
struct registry {
  base::mutex lock;
  std::vector<thread_cache*> spare;  // of threads that ended
};
registry& registered() {
  static auto* const one = new registry;
  return *one;
}

thread_cache* new_cache() noexcept {  // pages of its own: what is not touched costs nothing
  void* const at = os::map_memory(round_up(sizeof(thread_cache), os::page_size()));
  return at ? new (at) thread_cache : nullptr;
}

struct ended {};  // thread_pointer: the caches of this thread are gone for good
base::per_thread<thread_caches>& slot_of_threads() {
  static base::per_thread<thread_caches> slot;
  return slot;
}

}  // namespace

constinit base::atomic<std::size_t> mapped_spaces::used_{0};
constinit std::array<mapped_spaces::place, mapped_spaces::most> mapped_spaces::places_{};

void mapped_spaces::enter(address base, std::size_t bytes, address_space const& s) noexcept {
  base::lock_guard const hold(registered().lock);
  std::size_t const n = used_.load();
  std::size_t i = 0;
  while (i < n && places_[i].bytes.load() != 0) ++i;
  if (i == most) return;
  places_[i].base.store(base);
  places_[i].space.store(&s);
  places_[i].bytes.store(bytes, base::memory_order_release);
  if (i == n) used_.store(n + 1, base::memory_order_release);
  world_changed();
}

void mapped_spaces::leave(address base) noexcept {
  base::lock_guard const hold(registered().lock);
  for (place& p : places_) {
    if (p.bytes.load() != 0 && p.base.load() == base) p.bytes.store(0);
  }
  world_changed();
}

std::uint32_t thread_cache::wants(int c) noexcept {
  if (!gate_.enter()) return 0;
  magazine& m = magazines_[static_cast<std::size_t>(c)];
  std::uint32_t const n = m.count.get() ? 0 : m.limit / 2 - 1;
  if (!m.count.get()) raise_limit(c);
  gate_.leave();
  return n;
}

std::size_t thread_cache::put(int c, std::span<cached_slot const> from) noexcept {
  if (!gate_.enter()) return 0;
  magazine& m = magazines_[static_cast<std::size_t>(c)];
  std::uint32_t const n = m.count.get();
  std::size_t const taken = std::min<std::size_t>(from.size(), most_slots - n);
  std::copy_n(from.begin(), taken, slots_[static_cast<std::size_t>(c)].begin() + n);
  m.count.set(n + static_cast<std::uint32_t>(taken));
  m.lent.add(static_cast<std::int64_t>(taken));
  gate_.leave();
  return taken;
}

std::size_t thread_cache::spill(int c, std::span<cached_slot> out) noexcept {
  if (!gate_.enter()) return 0;
  magazine& m = magazines_[static_cast<std::size_t>(c)];
  auto& slots = slots_[static_cast<std::size_t>(c)];
  std::uint32_t const n = m.count.get();
  std::size_t going = 0;
  if (n >= m.limit) {
    raise_limit(c);
    if (n >= m.limit) {
      going = std::min<std::size_t>(n - m.limit / 2, out.size());
      std::copy_n(slots.begin(), going, out.begin());
      std::copy(slots.begin() + static_cast<std::ptrdiff_t>(going), slots.begin() + n, slots.begin());
      m.count.set(n - static_cast<std::uint32_t>(going));
      m.lent.add(-static_cast<std::int64_t>(going));
    }
  }
  gate_.leave();
  return going;
}

void thread_cache::raise_limit(int c) noexcept {
  magazine& m = magazines_[static_cast<std::size_t>(c)];
  if (m.limit == most_slots) return;
  std::size_t const more = m.limit * size_classes::bytes(c);
  if (granted_ + more > most_bytes) {  // of sizes that have nothing here now
    for (int other = 0; other < size_classes::count; ++other) {
      magazine& o = magazines_[static_cast<std::size_t>(other)];
      if (other == c || o.count.get() || o.limit == first_limit) continue;
      granted_ -= (o.limit - first_limit) * size_classes::bytes(other);
      o.limit = first_limit;
    }
    if (granted_ + more > most_bytes) return;
  }
  granted_ += more;
  m.limit *= 2;
}

observe::lent_slots thread_cache::counted() const noexcept {
  observe::lent_slots n;
  for (int c = 0; c < size_classes::count; ++c) {
    magazine const& m = magazines_[static_cast<std::size_t>(c)];
    auto const size = static_cast<std::int64_t>(size_classes::bytes(c));
    std::int64_t const held = m.count.get(), given = m.given.get(), taken = m.lent.get() + given - held;
    n.held += held, n.held_bytes += held * size;
    n.taken += taken, n.taken_bytes += taken * size;
    n.given += given, n.given_bytes += given * size;
  }
  n.taken_requested = requested_taken_.get(), n.given_requested = requested_given_.get();
  n.unused_bytes = n.taken_bytes - n.taken_requested - n.given_bytes + n.given_requested;
  return n;
}

void thread_cache::forget() noexcept {
  for (magazine& m : magazines_) m.count.set(0), m.lent.set(0), m.given.set(0), m.limit = first_limit;
  requested_taken_.set(0), requested_given_.set(0);
  granted_ = 0;
}

void thread_caches::forget() noexcept {
  world_ = world_version();
  by_line_ = {}, by_memory_ = {};
  last = {};
}

thread_cache* thread_caches::make(clock::timeline const& line, stream_memory& m) noexcept try {
  if (base::thread_pointer<ended>::value) return nullptr;
  thread_caches& mine = slot_of_threads().get();
  base::thread_pointer<thread_caches>::value = &mine;
  if (!mine.holds()) mine.forget();
  thread_cache* found = nullptr;
  for (thread_cache* c : mine.all_) {
    if (c->of.load() == &m) found = c;
  }
  if (!found) {
    mine.all_.reserve(mine.all_.size() + 1);
    auto& all = registered();
    base::lock_guard const hold(all.lock);
    for (thread_cache* c : mine.all_) {  // one whose memory has ended
      if (!c->of.load()) found = c;
    }
    if (found) {
      for (auto* table : {&mine.by_line_, &mine.by_memory_}) {
        for (entry& e : *table) {
          if (e.cache == found) e = {};
        }
      }
    } else {
      if (all.spare.empty()) {
        found = new_cache();
        if (!found) return nullptr;
      } else {
        found = all.spare.back();
        all.spare.pop_back();
      }
      mine.all_.push_back(found);
    }
    base::lock_guard const with(m.lock);
    m.caches.push_back(found);  // what throws here leaves a cache of nothing, which the next call uses
    found->forget();
    found->of.store(&m);
    found->open();
  }
  mine.by_line_[reinterpret_cast<std::uintptr_t>(&line) / 64 % ways] = {&line, found};
  mine.by_memory_[m.number % ways] = {&m, found};
  return found;
} catch (std::bad_alloc const&) {
  return nullptr;
}

thread_caches::~thread_caches() {
  base::thread_pointer<thread_caches>::value = nullptr;
  static char yes;
  base::thread_pointer<ended>::value = &yes;
  if (process_was_forked()) return;
  auto& all = registered();
  base::lock_guard const hold(all.lock);
  for (thread_cache* c : all_) {
    if (stream_memory* const m = c->of.load()) m->in.leave(*m, *c);
    try {
      all.spare.push_back(c);
    } catch (std::bad_alloc const&) {  // then it is never used again
    }
  }
}

void thread_caches::close(stream_memory& m) noexcept {
  base::lock_guard const hold(registered().lock);
  while (!m.caches.empty()) m.in.leave(m, *m.caches.back());
}

region const* mapped_spaces::find(address a) noexcept {
  for (std::size_t i = 0, n = used_.load(base::memory_order_acquire); i < n; ++i) {
    place const& p = places_[i];
    std::size_t const bytes = p.bytes.load(base::memory_order_acquire);
    if (a - p.base.load() < bytes) return p.space.load()->find(reinterpret_cast<void const*>(a));  // NOLINT(performance-no-int-to-ptr)
  }
  return nullptr;
}

void remember_stretch(thread_caches& mine, void const* p) noexcept {
  region const* const r = mapped_spaces::find(reinterpret_cast<address>(p));
  mine.last = {};
  if (!r) return;
  address const from = round_down(r->base, granule);  // slots lie in whole granules
  mine.last = {from, r->base + r->bytes - from, r->slabs()};
}

// Of device_allocator: what a thread's cache gives back, all at once, with the memory's lock.
std::size_t device_allocator::empty(stream_memory& m, thread_cache& c) noexcept {
  std::int64_t slots = 0;
  std::size_t bytes = 0;
  c.empty([&](cached_slot s) {
    slab& from = slab_of(s);
    ++slots, bytes += from.size;
    if (m.small.take_back(from, from.index(s.at))) return_run(m, from);
  });
  if (slots) m.counts.returned(slots, bytes);
  return bytes;
}

// Requires: the registry's lock. The cache stays shut.
void device_allocator::leave(stream_memory& m, thread_cache& c) noexcept {
  section const hold(m);
  c.shut();
  empty(m, c);
  m.lent_before += c.counted();
  c.of.store(nullptr);
  std::erase(m.caches, &c);
}

std::size_t device_allocator::empty_caches(stream_memory& m) {
  section const hold(m);
  std::size_t bytes = 0;
  for (thread_cache* c : m.caches) {
    c->shut();
    bytes += empty(m, *c);
    if (m.cacheable()) c->open();
  }
  return bytes;
}

// The thread's own cache of a memory, for blocks of slabs; null where each free must be seen at once.
thread_cache* device_allocator::cache_of(stream_memory& m) noexcept {
  if (!m.cacheable() || !space_.maps() || announced_ || runtime_.witness() || lost() || m.home.load()->seen_captured() || !base::owners_gate::works()) return nullptr;
  if (thread_caches const* const mine = thread_caches::mine()) {
    auto const& e = mine->of_memory(m.number % thread_caches::ways);
    if (mine->holds() && e.key == &m && !e.cache->is_shut()) return e.cache;
  }
  return thread_caches::make(*m.home.load(), m);
}

// After a slab was found to have this size: a few more at once, counted as lent.
void device_allocator::refill(stream_memory& m, thread_cache& c, int size_class) noexcept {
  std::array<cached_slot, thread_cache::most_slots> some;
  std::size_t const n = m.small.lend(size_class, std::span(some).first(c.wants(size_class)));
  std::size_t const size = size_classes::bytes(size_class);
  if (n == 0) return;
  m.counts.lent(static_cast<std::int64_t>(n), n * size);
  std::size_t const put = c.put(size_class, std::span(some).first(n));
  for (std::size_t i = put; i < n; ++i) (void)m.small.take_back(slab_of(some[i]), slab_of(some[i]).index(some[i].at));  // it was shut meanwhile; the slab it came from is not empty
  if (put < n) m.counts.returned(static_cast<std::int64_t>(n - put), (n - put) * size);
}

void device_allocator::spill(stream_memory& m, thread_cache& c, int size_class) noexcept {
  std::array<cached_slot, thread_cache::most_slots> some;
  std::size_t const n = c.spill(size_class, some);
  for (std::size_t i = 0; i < n; ++i) {
    slab& from = slab_of(some[i]);
    if (m.small.take_back(from, from.index(some[i].at))) return_run(m, from);
  }
  if (n) m.counts.returned(static_cast<std::int64_t>(n), n * size_classes::bytes(size_class));
}

}  // namespace weir::memory
