// Caches are made, used and left.
// Threads: as thread_caches.h. The registry's lock is taken before a heap's.
#include "runtime/memory/heap/thread_caches.h"

#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/room.h"
#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {
namespace {

// Caches are never destroyed: a thread may look at one whose heap has ended.
struct registry {
  base::mutex lock;
  std::vector<thread_cache*> spare;  // of threads that ended
};
registry& registered() noexcept {
  static base::lasting<registry> one;
  return *one;
}

thread_cache* new_cache() noexcept {  // pages of its own: untouched ones cost nothing
  void* const at = os::map_memory(round_up(sizeof(thread_cache), os::page_size()));
  return at ? new (at) thread_cache : nullptr;
}

// thread_pointer: number of a thread whose caches are gone for good. A kept thread's next life has another.
struct ended {};
void* number_of_thread() noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(base::this_thread_id()));
}
base::per_thread<thread_caches>& slot_of_threads() {
  static base::per_thread<thread_caches> slot;
  return slot;
}

// Requires: the registry's lock. Null: no host memory for one
thread_cache* spare_or_new_cache(registry& all) noexcept {
  if (all.spare.empty()) {
    base::no_switch const no_other_course;
    return new_cache();
  }
  thread_cache* const out = all.spare.back();
  all.spare.pop_back();
  return out;
}

// A cache whose heap has ended serves another. Requires: the registry's lock. Null: none has
thread_cache* cache_of_no_heap(std::vector<thread_cache*> const& of_a_thread) noexcept {
  thread_cache* out = nullptr;
  for (thread_cache* c : of_a_thread) {
    if (!c->of.load())
      out = c;
  }
  return out;
}

// Null: the thread has none of that heap. One that is listed may be of another heap by now.
thread_cache* known_cache(std::unordered_map<stream_heap const*, thread_cache*> const& all, stream_heap const& m) {
  auto const known = all.find(&m);
  if (known == all.end() || !known->second || known->second->of.load() != &m)
    return nullptr;
  return known->second;
}

template <class Table>
void forget_cache(Table& t, thread_cache const& c) noexcept {
  for (table_entry& e : t.entries) {
    if (e.cache == &c)
      e = {};
  }
}

template <class Table>
void forget_if_stale(Table& t) noexcept {
  if (t.holds())
    return;
  t.entries = {};
  t.version = fast_path_version() & ~std::uint64_t{1};
}
}  // namespace

thread_caches* thread_caches::of_this_thread() {
  if (base::thread_pointer<ended>::value == number_of_thread())
    return nullptr;
  thread_caches& mine = slot_of_threads().get();
  base::thread_pointer<thread_table, &no_table>::value = &mine.table;
  base::thread_pointer<allocation_table, &no_allocations>::value = &mine.now_->table;
  return &mine;
}

thread_cache* thread_caches::make(clock::stream_clock const& stream, stream_heap& m) noexcept try {
  thread_caches* const here = of_this_thread();
  if (!here)
    return nullptr;
  thread_caches& mine = *here;
  // A stale table also loses what it remembers of addresses and streams.
  if (!mine.table.holds())
    mine.table = {};
  forget_if_stale(mine.table);
  thread_cache* found = known_cache(mine.by_memory_, m);
  if (!found) {
    // What may throw comes before the cache is taken. Entries of heaps that have ended go.
    base::make_room(mine.all_);
    std::erase_if(mine.by_memory_, [](auto const& e) { return !e.second || e.second->of.load() != e.first; });
    thread_cache*& place = mine.by_memory_[&m];
    auto& all = registered();
    base::lock_guard const hold(all.lock);
    // A cache of this thread whose heap has ended, else one of a thread that has ended, else a new one.
    found = cache_of_no_heap(mine.all_);
    if (found) {
      forget_cache(mine.table, *found);
      for (auto const& c : mine.choices_)
        forget_cache(c->table, *found);
    } else {
      found = spare_or_new_cache(all);
      if (!found)
        return nullptr;
      mine.all_.push_back(found);
    }
    m.enlist(*found);
    place = found;  // null until now: enlist() may throw
  }
  mine.table.entries[m.bucket()] = {&stream, &m, found};
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
  if (process_was_forked())
    return;
  auto& all = registered();
  base::lock_guard const hold(all.lock);
  for (thread_cache* c : all_) {
    if (stream_heap* const m = c->of.load())
      m->leave(*c);
    try {
      all.spare.push_back(c);
    } catch (std::bad_alloc const&) {  // then it is never used again
    }
  }
}

void thread_caches::close(stream_heap& m) noexcept {
  base::lock_guard const hold(registered().lock);
  m.leave_all();
}

}  // namespace weir::memory
