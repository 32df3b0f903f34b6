// All caches of one thread, and the tables by which it finds them without a lock.
// Threads: a table belongs to its thread. close() is for any.
//
// Invariant: an entry of a table that holds is the thread's cache of a living heap. A cache changes its heap
// only under the registry's lock, so that a thread and a heap may end at the same time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/memory/heap/thread_cache.h"
#include "runtime/memory/space/memory_pool.h"

namespace weir::memory {

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
  std::uint64_t version = 0;             // as thread_table
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
  std::uint64_t version = 0;  // fast_path_version(), made even, when the rest was last empty
  stretch last;
  struct {  // where the last block was found; no slots lie there unless memory is short
    address base = 0;
    std::size_t bytes = 0;
    region const* in = nullptr;
  } blocks;
  std::array<table_entry, buckets> entries{};  // by stream_heap::bucket
  // Streams that the locked path marked blocks for; each is a stream while holds(). Two share a place, so that two
  // streams never drive each other out.
  std::array<clock::stream_clock const*, 8> users{};

  // Whether the table is still valid. holds_fast(): and no history or checker is told of blocks.
  bool holds_fast() const noexcept { return version == fast_path_version(); }
  bool holds() const noexcept { return version == (fast_path_version() & ~std::uint64_t{1}); }
  bool has_user(clock::stream_clock const* stream) const noexcept {
    std::size_t const at = place_of(stream);
    return users[at] == stream || users[at + 1] == stream;
  }
  void put_user(clock::stream_clock const* stream) noexcept {
    if (!has_user(stream))
      users[place_of(stream) + 1] = std::exchange(users[place_of(stream)], stream);
  }
  static std::size_t place_of(clock::stream_clock const* stream) noexcept {
    return allocation_table::bucket_of(stream) % 4 * 2;
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
  // The pool in force for that heap table: of those that were entered last and are there. Null: none
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
  static memory_pool* outer(std::uint64_t heap_table) noexcept;
  // The choice where that pool is in force, and else those of `before`. Made if there is none. Throws: bad_alloc
  choice& choice_within(choice& before, pool_in_force const&);
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
inline thread_table& thread_table::mine() noexcept {
  return *base::thread_pointer<thread_table, &no_table>::value;
}
inline allocation_table& allocation_table::mine() noexcept {
  return *base::thread_pointer<allocation_table, &no_allocations>::value;
}

}  // namespace weir::memory
