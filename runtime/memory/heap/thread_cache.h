// A thread's cache of one heap's small blocks: frees and allocations without a lock or a driver call.
// Threads: a cache belongs to one thread, its owner. The holder of its heap's lock may shut and empty it,
// also while the owner is blocked elsewhere. Only the owner opens it again, with that lock.
//
// Invariant: a slot is in at most one cache or list of deferred frees, and its state is `cached` exactly
// then. A cache holds at most `most_bytes` over all sizes, and outbox::most_bytes of deferred frees. So a
// device's memory exceeds what blocks and the rounding of slabs need by at most threads x streams x both.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/memory/blocks/region.h"
#include "runtime/memory/heap/deferred_frees.h"
#include "runtime/memory/space/memory_pool.h"
#include "runtime/observe/device_counters.h"

namespace weir::memory {

class address_space;


class thread_cache {
 public:
  static constexpr std::uint32_t most_slots = 64;                 // of a size
  static constexpr std::size_t most_bytes = 2 << 20;              // over all sizes
  static constexpr std::size_t always_raised = 1 << 10;           // bytes: the limit of such a size always rises
  static constexpr std::uint8_t first_limit = 2;                  // slots of a size, until it needs more

  // Owner only. Null or false: nothing has changed, take the locked path. lines: see slab::lines.
  [[gnu::always_inline]] void* take(std::size_t lines, std::size_t requested) noexcept {
    magazine& m = magazine_at(lines);
    std::uint64_t const head = m.head.begin();
    std::uint64_t const n = head & magazine::count_bits;
    if (n <= m.least.load(base::memory_order_relaxed)) [[unlikely]] {
      m.head.end(head);
      return nullptr;
    }
    cached_slot const s = m.slots[n - 1];
    auto const unused = static_cast<std::uint32_t>(m.size - requested);
    std::uint64_t cost = m.cost;
    if (unused) {
      cost -= unused;
      unused_taken_.add(unused);
      slab::set_live(*s.state, unused, m.size);
    } else {
      s.state->set(slot_bits::exact);
    }
    // NOLINT(performance-no-int-to-ptr)
    if (unpublished_.took(cost)) [[unlikely]] return reinterpret_cast<void*>(publish_and_end(m.head, head - 1, s.at));
    m.head.end(head - 1);
    return reinterpret_cast<void*>(s.at);  // NOLINT(performance-no-int-to-ptr)
  }
  // Requires: `was` is the state of a slot of this cache's heap, live and without a note.
  [[gnu::always_inline]] bool give(slab const& from, slot_byte& state, std::uint8_t was, address at) noexcept {
    magazine& m = magazine_at(from.lines);
    std::uint64_t const head = m.head.begin();
    std::uint64_t const n = head & magazine::count_bits;
    if (n >= m.most.load(base::memory_order_relaxed)) [[unlikely]] {
      m.head.end(head);
      return false;
    }
    std::uint64_t cost = m.cost;
    if (was != slot_bits::exact) {
      std::uint32_t const unused = slab::unused_of(state, was, from.size);
      unused_given_.add(unused);
      cost -= unused;
    }
    m.freed.set(static_cast<std::uint32_t>(home->number()));
    state.set(static_cast<std::uint8_t>(slot::cached));
    m.slots[n] = {at, &state};
    if (unpublished_.gave(cost)) [[unlikely]] return publish_and_end(m.head, head + magazine::one_given + 1, at) != 0;
    m.head.end(head + magazine::one_given + 1);
    return true;
  }

  // As give(), for a slot that another stream has used: its free is deferred.
  [[gnu::always_inline]] bool give_used(clock::stream_clock const* user, slab& from, std::uint32_t index,
                                        slot_byte& state, std::uint8_t was) noexcept {
    return out.put(user, from, index, state, was, unused_deferred_, home);
  }

  // Owner only, with the heap's lock.
  void open(clock::stream_clock const& home) noexcept;
  // How many more slots of this size it wants, now that it has none. Requires: open
  std::uint32_t wants(std::uint32_t size_class) noexcept;
  void put(std::uint32_t size_class, std::span<cached_slot const>) noexcept;         // Requires: no more than it wants
  // takes out the oldest half of a full size, for the slabs
  std::size_t spill(std::uint32_t size_class, std::span<cached_slot>) noexcept;

  // Any thread, with the heap's lock.
  void revoke() noexcept;  // Blocks: until its owner, if in one of the calls above, has left it
  template <class Do>
  void each(Do act) const {  // Requires: shut
    if (emptied_) return;
    each_used([&](std::uint32_t c) {
      magazine const& m = magazines_[c];
      for (std::uint32_t i = 0; i < m.count(); ++i) act(m.slots[i]);
    });
  }
  void empty() noexcept;     // the slots of each() have been taken. Requires: shut
  // The home's number, at most `now`, at the last free of that size here; slabs have the stamps of slots they
  // lent. Only the lower half is stored; the upper is the latest possible, so the result is never too small.
  // Requires: shut, or the owner's call
  std::uint64_t freed(std::uint32_t size_class, std::uint64_t now) const noexcept {
    return now - static_cast<std::uint32_t>(now - magazines_[size_class].freed.get());
  }
  // Reports allocations and frees here to the heap's tally. Requires: the lock, and shut or the owner's call
  void publish(observe::heap_counters&) noexcept;
  void publish_freely() noexcept { unpublished_.allow_all(); }  // no report until the next tell(). Requires: likewise
  bool has_unpublished() const noexcept {
    return unpublished_.granted() || out.unpublished_slots() != published_deferred_.blocks;
  }
  // A slot was freed here at that number of the home. The owner may be about to free another.
  bool has_freed_at(std::uint64_t now) const noexcept;
  observe::cached_slots counted() const noexcept;

  base::atomic<stream_heap*> of{nullptr};  // null: none any more; written with its lock and the registry's
  base::bias_word own;                     // the owner holds the heap's lock by it, without a locked instruction
  clock::stream_clock const* home = nullptr;     // of the heap, at the last open(). Owner only

 private:
  observe::unpublished unpublished_;
  observe::change published_deferred_;         // deferred frees that publish() has reported

 public:
  deferred_frees out;                                // shut and opened with the cache

 private:
  friend class thread_caches;
  // The slots of one size; the count and the first slots share a cache line. All zeros: empty and shut
  struct alignas(64) magazine {
    static constexpr std::uint64_t count_bits = 0x7f, one_given = 0x100;
    base::bias_word head;  // its count of slots, and from bit 8 on how many were ever freed here
    std::uint16_t size;                        // bytes
    base::atomic<std::uint8_t> least, most;  // the sign: a take needs more than `least`, a give less than `most`
    base::single_writer<std::uint32_t> freed;  // the home's number at the last free here, its lower half
    std::uint64_t cost;                        // untold::cost of `size`
    std::array<cached_slot, most_slots> slots; // the first count() of them
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(head.get() & count_bits); }
  };
  static_assert(sizeof(cached_slot) == 16 && offsetof(magazine, slots) == 24);
  static_assert(offsetof(magazine, head) == 0 && offsetof(magazine, least) == 10 && offsetof(magazine, most) == 11);
  static_assert(offsetof(magazine, freed) == 12 && offsetof(magazine, cost) == 16);
  static_assert(sizeof(magazine) == std::size_t{64} * slab::lines_a_size);
  magazine& magazine_at(std::size_t lines) noexcept {
    return *reinterpret_cast<magazine*>(reinterpret_cast<unsigned char*>(magazines_.data()) + lines * 64);
  }
  observe::change newly_deferred() noexcept;  // deferred since the last call
  // a call that has used up its grant
  [[gnu::noinline]] address publish_and_end(base::bias_word& head, std::uint64_t to, address answer) noexcept;
  template <class Do>
  void each_used(Do act) const {
    for (std::uint32_t w = 0; w < used_.size(); ++w) {
      for (std::uint64_t left = used_[w]; left; left &= left - 1)
        act(w * 64 + static_cast<std::uint32_t>(std::countr_zero(left)));
    }
  }
  void use(std::uint32_t size_class) noexcept;      // for its first use
  void set_sign(std::uint32_t size_class) noexcept;
  enum class met : std::uint8_t { nothing, empty, full };
  void missed(std::uint32_t size_class, met) noexcept;
  void raise_limit(std::uint32_t size_class) noexcept;
  void forget() noexcept;  // clears all counts, for another heap

  // bytes ever: size - requested of what was taken, freed here, deferred
  base::single_writer<std::int64_t> unused_taken_, unused_given_, unused_deferred_;
  bool revoked_ = true, emptied_ = true;
  std::array<std::uint64_t, (size_classes::count + 63) / 64> used_{};  // a bit a size that has been used
  std::array<std::uint8_t, size_classes::count> limits_{};
  std::array<met, size_classes::count> last_{};
  std::array<std::int64_t, size_classes::count> from_slabs_{};  // ever put in from the slabs, less those returned there
  std::size_t granted_ = 0;                                // bytes: the sum of limits above the first ones
  union {
    std::array<magazine, size_classes::count> magazines_;  // pages of zeros until they are used
  };

 public:
  thread_cache() noexcept {}  // Requires: zeroed memory
};

// A thread's cache of one heap.
struct alignas(32) table_entry {
  static constexpr char no_stream = 0;
  void const* stream = &no_stream;  // the home of the heap
  stream_heap* memory = nullptr;
  thread_cache* cache = nullptr;  // shut when its heap has ended
};

// What a thread reads to allocate without a lock, for one choice of pools: its caches by stream.
struct allocation_table {
  static constexpr std::size_t buckets = 64;
  std::uint64_t version = 0;  // as thread_table
  std::span<pool_in_force const> pools;  // at most one of a device
  alignas(64) std::array<table_entry, buckets> entries{};

  bool holds_fast() const noexcept { return version == fast_path_version(); }
  bool holds() const noexcept { return version == (fast_path_version() & ~std::uint64_t{1}); }
  static std::size_t bucket_of(clock::stream_clock const* stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream) / 64 % buckets;
  }
  // What an entry names a stream by. A registered stream may be captured without weir's knowledge: its key is not its
  // address, so that it is asked first.
  static clock::stream_clock const* key_of(clock::stream_clock const& s) noexcept {
    return s.is_asked() ? reinterpret_cast<clock::stream_clock const*>(reinterpret_cast<char const*>(&s) + 1) : &s;
  }
  static allocation_table& mine() noexcept;
};
static_assert(sizeof(table_entry) == 32 && offsetof(allocation_table, version) == 0 &&
              offsetof(allocation_table, entries) == 64);
inline constinit allocation_table no_allocations{};  // for threads without caches: never holds, never written

// What a thread reads to free and to mark without a lock: its caches by heap, whichever pools are in force.
struct thread_table {
  static constexpr std::size_t buckets = 64;
  struct stretch {  // of addresses, where the last slot was found
    address base = 0;
    std::size_t bytes = 0;
    slab** slabs = nullptr;  // by granule
    region const* in = nullptr;
  };
  std::uint64_t version = 0;   // fast_path_version(), made even, when the rest was last empty
  stretch last;
  struct {                   // where the last block was found; no slots lie there unless memory is short
    address base = 0;
    std::size_t bytes = 0;
    region const* in = nullptr;
  } blocks;
  std::array<table_entry, buckets> entries{};  // by stream_heap::bucket
  // streams that the locked path marked blocks for; each is a stream while holds()
  std::array<clock::stream_clock const*, 8> users{};

  // Whether the table is still valid. holds_fast(): and no history or checker is told of blocks.
  bool holds_fast() const noexcept { return version == fast_path_version(); }
  bool holds() const noexcept { return version == (fast_path_version() & ~std::uint64_t{1}); }
  static std::size_t user_of(clock::stream_clock const* stream) noexcept {
    return allocation_table::bucket_of(stream) % 8;
  }
  static thread_table& mine() noexcept;
};
static_assert(sizeof(thread_table) == 2176 && sizeof(thread_table::stretch) == 32);
static_assert(offsetof(thread_table, version) == 0 && offsetof(thread_table, last) == 8 &&
              offsetof(thread_table, blocks) == 40);
static_assert(offsetof(thread_table, entries) == 64 && offsetof(thread_table, users) == 2112);
inline constinit thread_table no_table{};  // for threads without caches: never holds, never written

class thread_caches {
 public:
  thread_table table;
  thread_caches();  // Throws: bad_alloc
  // The calling thread's cache of that heap, made if missing, for its frees. Null: no host memory for one.
  static thread_cache* make(clock::stream_clock const&, stream_heap&) noexcept;
  // From now on the calling thread allocates from that cache for its heap's home, while these pools are in force.
  static void use(clock::stream_clock const&, stream_heap&, thread_cache&) noexcept;
  // The pools of the calling thread: each new one replaces those of its device until it leaves, in any order.
  // Returns: a number for leave(), of this thread
  static std::uint64_t enter(memory_pool&);  // Throws: bad_alloc
  static void leave(std::uint64_t) noexcept;
  // The pool in force for that heap table. Null: none
  static memory_pool* in_force(std::uint64_t heap_table) noexcept;
  ~thread_caches();  // returns what its caches hold to the slabs

  // A heap ends: its caches are emptied, and none is entered again. Requires: no heap's lock held
  static void close(stream_heap&) noexcept;

 private:
  struct choice {
    allocation_table table;
    std::vector<pool_in_force> pools;  // by heap table
    // where the pool that was last entered from here led
    std::uint64_t last_pool = 0;
    choice* last = nullptr;
  };
  struct entered {
    std::uint64_t number;
    pool_in_force pool;
    choice* before;
  };
  choice& with(choice& before, pool_in_force const&);  // Throws: bad_alloc
  void choose(choice&) noexcept;
  static thread_caches* of_this_thread();  // Throws: bad_alloc. Null: its thread ends

  std::vector<std::unique_ptr<choice>> choices_;  // the first: no pool
  choice* now_ = nullptr;
  std::vector<entered> entered_;  // the oldest first
  std::uint64_t next_number_ = 1;
  std::vector<thread_cache*> all_;
  // may name heaps that have ended: such a cache is of another heap now, or of none
  std::unordered_map<stream_heap const*, thread_cache*> by_memory_;
};
inline thread_table& thread_table::mine() noexcept { return *base::thread_pointer<thread_table, &no_table>::value; }
inline allocation_table& allocation_table::mine() noexcept {
  return *base::thread_pointer<allocation_table, &no_allocations>::value;
}

// Which addresses of the process are memory of devices that map, for the lock-free paths.
class mapped_spaces {
 public:
  static constexpr std::size_t most = 64;
  // beyond `most`: blocks there take the locked path
  static void enter(address base, std::size_t bytes, address_space const&) noexcept;
  static void leave(address base) noexcept;
  static region const* find(address) noexcept;

 private:
  struct place {
    base::atomic<address> base{0};
    base::atomic<std::size_t> bytes{0};
    base::atomic<address_space const*> space{nullptr};
  };
  static base::atomic<std::size_t> used_;
  static std::array<place, most> places_;
};

// For blocks that are no slots (fast_path_large.cpp), on the thread that owns their heap's lock.
void* allocate_large(allocation_table const&, clock::stream_clock const*, std::size_t bytes,
                     std::size_t alignment) noexcept;
bool deallocate_large(thread_table const&, region const&, address) noexcept;

// The lock-free paths. Null or false: the caller takes the locked path. `noted`: for callers that write to
// the history; the others return null or false while there is a history.
[[gnu::always_inline]] inline void* allocate_of(allocation_table const& mine, clock::stream_clock const* stream,
                                                std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes > size_classes::largest) [[unlikely]] return allocate_large(mine, stream, bytes, alignment);
  auto const& e = mine.entries[allocation_table::bucket_of(stream)];
  if (e.stream != stream) [[unlikely]] return nullptr;
  std::size_t const lines = size_classes::lines_of(bytes);
  if (alignment) [[unlikely]] {
    if ((alignment & (alignment - 1)) ||
        (size_classes::bytes(static_cast<int>(lines / slab::lines_a_size)) & (alignment - 1)))
      return nullptr;
  }
  return e.cache->take(lines, bytes);
}

// as deallocate_of; remembers where the block was found, for the next block near it
bool deallocate_after_search(thread_table&, void*) noexcept;
// Ensures: true if the address lies in the range that is remembered now
bool look_for_slots(thread_table&, address) noexcept;

[[gnu::always_inline]] inline bool deallocate_of(thread_table& mine, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  auto const& near = mine.last;
  if (a - near.base >= near.bytes) {
    return a - mine.blocks.base < mine.blocks.bytes ? deallocate_large(mine, *mine.blocks.in, a)
                                                    : deallocate_after_search(mine, p);
  }
  slab const* s = base::load_acquire(near.slabs[(a - near.base) / granule]);
  std::uint32_t i;
  if (!s) [[unlikely]] {
    if (!(s = near.in->table.slab_in_cell(a))) return deallocate_large(mine, *near.in, a);
  }
  if (!s->starts(a - s->base, i)) [[unlikely]] return false;
  slot_byte& state = s->byte(i);
  std::uint8_t const was = state.get();
  if (was != slot_bits::exact && (was & slot_bits::in_use) != static_cast<std::uint8_t>(slot::live)) [[unlikely]]
    return false;
  auto const& e = mine.entries[s->bucket];
  return e.memory == s->owner && e.cache->give(*s, state, was, a);
}

// Used by `user`: its work so far comes before the block's next use.
inline bool deallocate_used(thread_table& mine, clock::stream_clock const* user, void* p) noexcept {
  auto const a = reinterpret_cast<address>(p);
  if (a - mine.last.base >= mine.last.bytes && !look_for_slots(mine, a)) [[unlikely]] return false;
  slab* const s = mine.last.in->table.slab_at(a);
  std::uint32_t i;
  if (!s || !s->starts(a - s->base, i)) [[unlikely]] return false;
  slot_byte& state = s->byte(i);
  std::uint8_t const was = state.get();
  if ((was & slot_bits::in_use) != static_cast<std::uint8_t>(slot::live)) [[unlikely]] return false;
  auto const& e = mine.entries[s->bucket];
  if (e.memory != s->owner) [[unlikely]] return false;
  return user == e.stream ? e.cache->give(*s, state, was, a) : e.cache->give_used(user, *s, i, state, was);
}

[[gnu::always_inline]] inline void* fast_allocate(clock::stream_clock const* stream, std::size_t bytes,
                                                   std::size_t alignment) noexcept {
  allocation_table const& mine = allocation_table::mine();
  return mine.holds_fast() ? allocate_of(mine, stream, bytes, alignment) : nullptr;
}
[[gnu::always_inline]] inline bool fast_deallocate(void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds_fast() && deallocate_of(mine, p);
}
inline bool fast_deallocate_used(clock::stream_clock const* user, void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds_fast() && deallocate_used(mine, user, p);
}
// record_stream, and the free of a block that is marked for one stream. last_use: null if no other used it.
bool fast_record_use(clock::stream_clock* user, void const* p) noexcept;
// it may mark blocks without the lock, while this thread's table holds
void remember_user(clock::stream_clock& user) noexcept;
bool fast_deallocate_marked(clock::stream_clock const* last_use, void* p) noexcept;

inline void* fast_allocate_noted(clock::stream_clock const* stream, std::size_t bytes, std::size_t alignment) noexcept {
  allocation_table const& mine = allocation_table::mine();
  return mine.holds() ? allocate_of(mine, stream, bytes, alignment) : nullptr;
}
// Of a registered stream that was just found not to be captured.
inline void* fast_allocate_asked(clock::stream_clock const& stream, std::size_t bytes, std::size_t alignment) noexcept {
  return fast_allocate_noted(allocation_table::key_of(stream), bytes, alignment);
}
inline bool fast_deallocate_noted(void* p) noexcept {
  thread_table& mine = thread_table::mine();
  return mine.holds() && deallocate_of(mine, p);
}

}  // namespace weir::memory
