// The slow half of thread_cache.h: caches are made, filled, spilled, emptied and left.
// Threads: as thread_cache.h. The registry's lock is taken before a heap's.
#include "runtime/memory/heap/thread_cache.h"

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/base/room.h"
#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {
namespace {

// A cache changes its heap only under this lock, so that a thread and a heap may end at the same time. Caches
// are never destroyed: a thread may look at one whose heap has ended.
struct registry {
  base::mutex lock;
  std::vector<thread_cache*> spare;  // of threads that ended
};
registry& registered() {
  static auto* const one = new registry;
  return *one;
}

thread_cache* new_cache() noexcept {  // pages of its own: untouched ones cost nothing
  void* const at = os::map_memory(round_up(sizeof(thread_cache), os::page_size()));
  return at ? new (at) thread_cache : nullptr;
}

// thread_pointer: number of a thread whose caches are gone for good. A kept thread's next life has another.
struct ended {};
// NOLINT(performance-no-int-to-ptr)
void* number_of_thread() noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(base::this_thread_id()));
}
base::per_thread<thread_caches>& slot_of_threads() {
  static base::per_thread<thread_caches> slot;
  return slot;
}

}  // namespace

constinit base::atomic<std::size_t> mapped_spaces::used_{0};
constinit std::array<mapped_spaces::place, mapped_spaces::most> mapped_spaces::places_{};

void mapped_spaces::enter(address base, std::size_t bytes, address_space const& s) noexcept {
  base::lock_guard const hold(registered().lock);
  base::no_switch const whatever_was_there_before;  // entries of earlier runtimes add no switch point
  std::size_t const n = used_.load();
  std::size_t i = 0;
  while (i < n && places_[i].bytes.load() != 0) ++i;
  if (i == most) return;
  places_[i].base.store(base);
  places_[i].space.store(&s);
  places_[i].bytes.store(bytes, base::memory_order_release);
  if (i == n) used_.store(n + 1, base::memory_order_release);
  invalidate_fast_paths();
}

void mapped_spaces::leave(address base) noexcept {
  base::lock_guard const hold(registered().lock);
  base::no_switch const whatever_was_there_before;
  for (place& p : places_) {
    if (p.bytes.load() != 0 && p.base.load() == base) p.bytes.store(0);
  }
  invalidate_fast_paths();
}

void thread_cache::set_sign(std::uint32_t c) noexcept {
  magazines_[c].least.store(revoked_ ? most_slots : 0, base::memory_order_relaxed);
  magazines_[c].most.store(revoked_ ? 0 : limits_[c], base::memory_order_relaxed);
}

void thread_cache::revoke() noexcept {
  if (revoked_) return;
  revoked_ = true;
  each_used([&](std::uint32_t c) { set_sign(c); });
  out.set_revoked();
  base::process_wide_fence();
  each_used([&](std::uint32_t c) { magazines_[c].head.wait_for_end(); });
  out.wait_for_end();
}

void thread_cache::open(clock::stream_clock const& stream) noexcept {
  if (!revoked_) return;
  revoked_ = false;
  home = &stream;
  each_used([&](std::uint32_t c) {
    if (emptied_) magazines_[c].head.end(magazines_[c].head.get() & ~magazine::count_bits), magazines_[c].freed.set(0);
    set_sign(c);
  });
  emptied_ = false;
  out.open();
}

void thread_cache::empty() noexcept {  // the owner sets the counts to 0 when it opens
  if (std::exchange(emptied_, true)) return;
  each_used([&](std::uint32_t c) { from_slabs_[c] -= magazines_[c].count(); });
}

void thread_cache::use(std::uint32_t c) noexcept {
  if (limits_[c]) return;
  used_[c / 64] |= std::uint64_t{1} << (c % 64);
  limits_[c] = first_limit;
  magazines_[c].size = static_cast<std::uint16_t>(size_classes::bytes(static_cast<int>(c)));
  magazines_[c].cost = observe::unpublished::cost(magazines_[c].size);
}

std::uint32_t thread_cache::wants(std::uint32_t c) noexcept {
  magazine& m = magazines_[c];
  if (m.count()) return 0;
  use(c);
  missed(c, met::empty);
  set_sign(c);
  return limits_[c] / 2u - 1;
}

void thread_cache::put(std::uint32_t c, std::span<cached_slot const> from) noexcept {
  magazine& m = magazines_[c];
  std::copy(from.begin(), from.end(), m.slots.begin() + m.count());
  m.head.end(m.head.get() + from.size());
  from_slabs_[c] += static_cast<std::int64_t>(from.size());
}

std::size_t thread_cache::spill(std::uint32_t c, std::span<cached_slot> out) noexcept {
  magazine& m = magazines_[c];
  std::uint32_t const n = m.count();
  use(c);
  if (n >= limits_[c]) missed(c, met::full);
  set_sign(c);
  if (n < limits_[c]) return 0;
  std::size_t const going = std::min<std::size_t>(n - limits_[c] / 2u, out.size());
  std::copy_n(m.slots.begin(), going, out.begin());
  std::copy(m.slots.begin() + static_cast<std::ptrdiff_t>(going), m.slots.begin() + n, m.slots.begin());
  m.head.end(m.head.get() - going);
  from_slabs_[c] -= static_cast<std::int64_t>(going);
  return going;
}

// The limit of a larger size rises when it was full after it was empty, or empty after it was full. Sizes
// that are only allocated, or only freed, would take room from sizes that need it.
void thread_cache::missed(std::uint32_t c, met what) noexcept {
  bool const again = std::exchange(last_[c], what) == what;
  if (!again || size_classes::bytes(static_cast<int>(c)) <= always_raised) raise_limit(c);
}

void thread_cache::raise_limit(std::uint32_t c) noexcept {
  auto const bytes = [](std::uint32_t of) { return size_classes::bytes(static_cast<int>(of)); };
  std::size_t const more = limits_[c] * bytes(c);
  if (limits_[c] == most_slots) return;
  if (granted_ + more > most_bytes) {  // take room from sizes that are empty now
    each_used([&](std::uint32_t other) {
      if (other == c || magazines_[other].count() || limits_[other] == first_limit) return;
      granted_ -= (limits_[other] - first_limit) * bytes(other);
      limits_[other] = first_limit;
      set_sign(other);
    });
    if (granted_ + more > most_bytes) return;
  }
  granted_ += more;
  limits_[c] = static_cast<std::uint8_t>(limits_[c] * 2);
}

bool thread_cache::has_freed_at(std::uint64_t now) const noexcept {
  bool found = false;
  each_used([&](std::uint32_t c) {
    found |= magazines_[c].count() > 0 && magazines_[c].freed.get() == static_cast<std::uint32_t>(now);
  });
  return found;
}

observe::cached_slots thread_cache::counted() const noexcept {
  observe::cached_slots n;
  each_used([&](std::uint32_t c) {
    std::uint64_t const head = magazines_[c].head.get();
    auto const size = static_cast<std::int64_t>(size_classes::bytes(static_cast<int>(c)));
    std::int64_t const held = emptied_ ? 0 : static_cast<std::int64_t>(head & magazine::count_bits);
    auto const given = static_cast<std::int64_t>(head / magazine::one_given);
    std::int64_t const taken = from_slabs_[c] + given - held;
    n.held += held, n.held_bytes += held * size;
    n.taken += taken, n.total_bytes += taken * size;
    n.given += given, n.given_bytes += given * size;
  });
  auto const ever = out.unpublished(), now = out.unpublished_here();
  n.given += ever.slots, n.given_bytes += ever.bytes;
  n.waited = ever.slots, n.waited_bytes = ever.bytes;
  n.waiting_bytes = now.bytes, n.held_bytes += now.bytes;
  std::int64_t const unused_given = unused_given_.get() + unused_deferred_.get();
  n.unused_bytes = unused_taken_.get() - unused_given;
  n.taken_requested = n.total_bytes - unused_taken_.get(), n.given_requested = n.given_bytes - unused_given;
  return n;
}

void thread_cache::forget() noexcept {
  each_used([&](std::uint32_t c) {
    magazines_[c].head.end(0);
    from_slabs_[c] = 0;
    limits_[c] = first_limit;
    last_[c] = met::nothing;
  });
  unused_taken_.set(0), unused_given_.set(0), unused_deferred_.set(0);
  unpublished_.forget(), published_deferred_ = {};
  granted_ = 0;
  out.forget();
}

observe::change thread_cache::newly_deferred() noexcept {
  auto const deferred = out.unpublished();
  observe::change const now{deferred.slots, deferred.bytes, deferred.bytes - unused_deferred_.get()},
      then = std::exchange(published_deferred_, now);
  return {now.blocks - then.blocks, now.bytes - then.bytes, now.requested - then.requested};
}
void thread_cache::publish(observe::heap_counters& to) noexcept { to.absorb(unpublished_.take(), newly_deferred()); }

// The only cache of a heap may write its tally here: other writers have the lock and have shut the cache.
address thread_cache::publish_and_end(base::bias_word& head, std::uint64_t to, address answer) noexcept {
  stream_heap& m = *of.load();
  m.sole == this ? unpublished_.allow(m.counts.left_after(unpublished_.take(), newly_deferred()))
                 : unpublished_.allow_all();
  head.end(to);
  return answer;
}

namespace {
template <class Table>
void forget_if_stale(Table& t) noexcept {
  if (t.holds()) return;
  t.entries = {};
  t.version = fast_path_version() & ~std::uint64_t{1};
}
}  // namespace

thread_caches* thread_caches::of_this_thread() {
  if (base::thread_pointer<ended>::value == number_of_thread()) return nullptr;
  thread_caches& mine = slot_of_threads().get();
  base::thread_pointer<thread_table, &no_table>::value = &mine.table;
  base::thread_pointer<allocation_table, &no_allocations>::value = &mine.now_->table;
  return &mine;
}

thread_cache* thread_caches::make(clock::stream_clock const& stream, stream_heap& m) noexcept try {
  thread_caches* const here = of_this_thread();
  if (!here) return nullptr;
  thread_caches& mine = *here;
  if (!mine.table.holds()) mine.table = {};
  forget_if_stale(mine.table);
  auto const known = mine.by_memory_.find(&m);
  thread_cache* found =
      known != mine.by_memory_.end() && known->second && known->second->of.load() == &m ? known->second : nullptr;
  if (!found) {
    base::make_room(mine.all_);
    std::erase_if(mine.by_memory_, [](auto const& e) { return !e.second || e.second->of.load() != e.first; });
    thread_cache*& place = mine.by_memory_[&m];
    auto& all = registered();
    base::lock_guard const hold(all.lock);
    for (thread_cache* c : mine.all_) {  // one whose heap has ended
      if (!c->of.load()) found = c;
    }
    if (found) {
      auto const forget_it = [&](auto& entries) {
        for (table_entry& e : entries) e = e.cache == found ? table_entry{} : e;
      };
      forget_it(mine.table.entries);
      for (auto const& c : mine.choices_) forget_it(c->table.entries);
    } else {
      if (all.spare.empty()) {
        base::no_switch const no_other_course;
        found = new_cache();
        if (!found) return nullptr;
      } else {
        found = all.spare.back();
        all.spare.pop_back();
      }
      mine.all_.push_back(found);
    }
    base::biased_lock const with(m.lock);
    m.caches.push_back(found);  // if this throws, the cache has no heap, and the next call uses it
    {
      base::no_switch const whatever_it_was_used_for;
      found->forget();
      found->of.store(&m);
    }
    m.caches_changed();  // may wait for the owner of another cache
    place = found;
  }
  mine.table.entries[m.bucket] = {&stream, &m, found};
  return found;
} catch (std::bad_alloc const&) {
  return nullptr;
}

void thread_caches::use(clock::stream_clock const& stream, stream_heap& m, thread_cache& c) noexcept {
  allocation_table& mine = allocation_table::mine();  // this thread's, for it has the cache
  forget_if_stale(mine);
  mine.entries[allocation_table::bucket_of(&stream)] = {allocation_table::key_of(stream), &m, &c};
}

thread_caches::~thread_caches() {
  base::thread_pointer<thread_table, &no_table>::value = &no_table;
  base::thread_pointer<allocation_table, &no_allocations>::value = &no_allocations;
  base::thread_pointer<ended>::value = number_of_thread();
  if (process_was_forked()) return;
  auto& all = registered();
  base::lock_guard const hold(all.lock);
  for (thread_cache* c : all_) {
    if (stream_heap* const m = c->of.load()) m->leave(*c);
    try {
      all.spare.push_back(c);
    } catch (std::bad_alloc const&) {  // then it is never used again
    }
  }
}

void thread_caches::close(stream_heap& m) noexcept {
  base::lock_guard const hold(registered().lock);
  while (!m.caches.empty()) m.leave(*m.caches.back());
}

region const* mapped_spaces::find(address a) noexcept {
  base::no_switch const whatever_was_there_before;
  for (std::size_t i = 0, n = used_.load(base::memory_order_acquire); i < n; ++i) {
    place const& p = places_[i];
    std::size_t const bytes = p.bytes.load(base::memory_order_acquire);
    // NOLINT(performance-no-int-to-ptr)
    if (a - p.base.load() < bytes) return p.space.load()->find(reinterpret_cast<void const*>(a));
  }
  return nullptr;
}

bool look_for_slots(thread_table& mine, address a) noexcept {
  region const* const r = mapped_spaces::find(a);
  if (!r || (a < r->runs && r->runs < r->base + r->bytes)) return false;
  // runs begin at a page
  address const first = round_down(r->base, granule), from = r->runs < r->base + r->bytes ? r->runs : first;
  mine.last = {from, r->base + r->bytes - from, r->table.wholes() + (from - first) / granule, r};
  return a - from < mine.last.bytes;
}

bool deallocate_after_search(thread_table& mine, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  region const* const r = mapped_spaces::find(a);
  if (!r) return false;
  // the table of slabs is not read: each block would touch another cache line of it
  if (a < r->runs && r->runs < r->base + r->bytes) {
    mine.blocks = {r->base, r->runs - r->base, r};
    return deallocate_large(mine, *r, a);
  }
  return look_for_slots(mine, a) && deallocate_of(mine, p);
}

}  // namespace weir::memory
