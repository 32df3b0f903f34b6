// One stream's heap: its blocks behind one lock, its thread caches, its handles, its row in the index.
// Threads: any. What a heap holds is private: session.h has the doors to it.
//
// Invariant: as thread_cache.h and heap_index.h.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "runtime/memory/blocks/alias_table.h"
#include "runtime/memory/blocks/arena.h"
#include "runtime/memory/blocks/pending_queue.h"
#include "runtime/memory/blocks/slab.h"
#include "runtime/memory/heap/heap_index.h"
#include "runtime/memory/heap/thread_caches.h"
#include "runtime/memory/space/alloc_request.h"
#include "runtime/memory/space/device_context.h"
#include "runtime/memory/space/memory_pool.h"

namespace weir::memory {

class alignas(64) stream_heap {
 public:
  stream_heap(device_context& d, heap_index& all, clock::stream_clock& t, memory_pool& p)
      : of_(d),
        index_(all),
        number_(all.size()),
        bucket_(bucket_of(t, p)),
        home_(&t),
        home_lifetime_(t.hold()),
        pool_(&p) {}

  // What follows needs no lock: an answer may be old when it arrives, so that it may choose, and decides nothing.
  clock::stream_clock& home() const noexcept { return *home_.load(base::memory_order_acquire); }
  memory_pool& pool() const noexcept { return *pool_.get(); }
  std::uint64_t readers() const noexcept {
    return readers_.load();
  }  // other devices each handle is open to, a bit each
  bool is_asleep() const noexcept { return asleep_.get(); }
  std::size_t number() const noexcept { return number_; }           // in the index
  allocator* entry() const noexcept { return of_.entry; }           // of its device's memory
  std::size_t bucket() const noexcept { return bucket_; }           // the thread_table entry of a thread's cache for it
  bool is_called() const noexcept { return callers_.load() != 0; }  // by a thread with a heap_stay
  // Its small blocks are those of many streams: each names its own home (device/page_sharing.h).
  bool is_shared() const noexcept { return home().has_no_stream(); }
  pool_rules const& rules() const noexcept { return pool().rules(); }
  // Every free on a borrowed stream is counted, and a block of a shared page names its home: these have no caches.
  bool cacheable() const noexcept { return home().alive() != clock::life::borrowed && rules().caches && !is_shared(); }
  // The home's id in reports: of a graph's memory the stream's that was captured; 0: of many streams
  std::uint64_t shown_stream() const noexcept { return is_shared() ? 0 : shown(home()).id(); }
  static clock::stream_clock& shown(clock::stream_clock& home) noexcept {
    clock::stream_clock* const captured = home.stands_for();
    return captured ? *captured : home;
  }
  // Bytes, as counted
  std::int64_t bytes_mapped() const noexcept { return counts_.bytes_mapped(); }
  std::int64_t bytes_live() const noexcept { return counts_.bytes_live(); }
  std::int64_t bytes_pending() const noexcept { return counts_.bytes_pending(); }
  std::int64_t large_allocations() const noexcept { return counts_.large_taken(); }  // ever
  std::int64_t most_live() const noexcept { return counts_.most_live(); }
  void prefetch_counts() const noexcept;  // for a walk through many heaps
  // Bytes freed between two fences of a stream: a share of what the heap has mapped.
  static constexpr std::size_t fence_least = 16 << 20;
  std::size_t fence_after(int halvings) const noexcept {
    return of_.fence_interval ? of_.fence_interval
                              : std::max(fence_least, static_cast<std::size_t>(bytes_mapped()) >> halvings);
  }
  // Blocks of other heaps since it last got pages, or was refused some, for that
  unsigned borrowed() const noexcept { return borrowed_.load(base::memory_order_relaxed); }
  void note_borrowed() noexcept { borrowed_.fetch_add(1, base::memory_order_relaxed); }
  void forget_borrowed() noexcept { borrowed_.store(0, base::memory_order_relaxed); }
  bool may_defer_free(region const&, void const*, clock::stream_clock const& user) const noexcept;

  // What follows takes the lock itself, where it needs it. Requires: the calling thread holds no heap's lock
  thread_cache* cache_here() noexcept;  // the calling thread's; null: none is of use
  // Likewise; the thread then allocates from it without a lock. Requires: what its pools in force say
  thread_cache* cache_to_allocate() noexcept;
  void enlist(thread_cache&);          // a new one for it. Throws: bad_alloc. Requires: the registry's lock
  void leave(thread_cache&) noexcept;  // the cache's thread ends, or the heap does. Requires: likewise
  void leave_all() noexcept;           // likewise, each of its caches
  std::size_t empty_caches();          // and sheds cells; bytes
  std::size_t flush_deferred();        // deferred frees become pending; bytes
  void finish();                       // Blocks: until the home and all that blocks wait for are complete
  aliased_handle const& reserved_handle(address at);  // Requires: its address range is reserved by the caller

 private:
  // The doors (session.h), which say what each may do.
  friend class excluded;
  friend class quiet_session;
  friend class session;
  friend class owner_session;
  friend class heap_stay;
  // Two more friends: `readers_` and the counters of all heaps are read under the table's own lock, and the owner of
  // the sole cache writes the counters between begin() and end(), without a lock.
  friend class heap_table;
  friend class thread_cache;
  friend struct heap_probe;  // of tests

  // From mapped memory. Null: nothing mapped fits. All below require the lock.
  void* take(alloc_request const&);
  void* take_or_shed(alloc_request const&);
  void* take_anywhere(alloc_request const&);
  void* take_for(clock::stream_clock& user, alloc_request const&);
  void* hand_out(heap_block&, alloc_request const&, clock::stream_clock* other_home);
  void* hand_out(slabs::taken, alloc_request const&);
  slabs::taken free_slot(alloc_request const&);  // from a slab, or from a run that is cut now
  slabs::taken slot_freed_by(clock::stream_clock&, alloc_request const&) noexcept;  // that waits for it alone
  void cut_run(heap_block& run, int size_class);  // Throws: bad_alloc; the run is free again then
  void return_run(slab&) noexcept;
  void run_gone(std::size_t bytes) noexcept;  // to the counters
  std::size_t return_idle_cells();

  // Pending blocks
  std::size_t reclaim();
  // Requires: all use of the block is ordered before the stamp (home, freed)
  void reclaimed(pending_block const&, std::uint64_t freed) noexcept;
  void note_waiting() noexcept;  // counts deferred frees for the peaks; before a block is pending no more

  // Thread caches. refill, spill, open and defer_free require the cache's thread.
  void refill(thread_cache&, int size_class) noexcept;
  void spill(thread_cache&, int size_class) noexcept;
  bool open(thread_cache&) noexcept;  // false: it has to stay shut
  bool defer_free(thread_cache&, slabs::taken, deferred_frees::users, std::span<clock::stamp const>,
                  bool& due) noexcept;
  // deferred frees become pending; bytes. Requires: shut, or the owner
  std::size_t flush(deferred_frees&) noexcept;
  std::size_t flush_all(thread_cache&) noexcept;  // likewise
  std::size_t empty(thread_cache&) noexcept;      // bytes. Requires: shut
  std::size_t revoke_and_empty() noexcept;        // all caches; bytes
  void hear() noexcept;                           // counts what `sole_` has not reported. Requires: sole_
  void caches_changed() noexcept;
  void share(observe::shared_levels&) noexcept;  // takes the lock

  // Handles
  void note_mapped(handle const&) noexcept;                            // counts and reports it
  void note_unmapped(handle const&) noexcept;                          // likewise
  void record_mapping(handle const&, observe::action) const noexcept;  // to the history
  void free_left_behind() noexcept;  // the pool has ended. Requires: mapping_lock::exclusive

  bool holds_blocks() const;  // that live, or are pending
  // Counts its live blocks and runs as freed, or else as allocated again. Returns: how many blocks
  std::size_t count_asleep(bool falls_asleep) noexcept;
  // While no other stream looks for memory here, each fence doubles the distance to the next, up to 16 times.
  std::size_t fence_at_home_after() const noexcept {
    int const halvings = wanted_ ? 5 : 0;
    int const doublings = of_.fence_interval ? 0 : std::min(unwanted_, 4);
    return fence_after(halvings) << doublings;
  }
  heap_index::rows to_be_listed() const noexcept;  // as heap_index.h says
  void list() noexcept {                           // likewise
    if (heap_index::rows const now = to_be_listed(); now != listed_)
      index_.list(number_, std::exchange(listed_, now), now);
  }
  static std::size_t bucket_of(clock::stream_clock const& t, memory_pool const& p) noexcept {
    return (allocation_table::bucket_of(&t) + p.number() * 7) % thread_table::buckets;
  }

  device_context& of_;
  heap_index& index_;  // of all heaps of the device
  std::size_t const number_;
  std::size_t const bucket_;
  base::atomic<clock::stream_clock*> home_;
  // The only cache, if this is its device's only heap. Its thread may write `counts_` inside its own calls.
  // Every other thread shuts it first, which a session does.
  thread_cache* sole_ = nullptr;
  std::size_t freed_since_fence_ = 0;  // bytes freed that only the home has used
  // guards all below, both above, and changes of `home_`: stamp numbers belong to the home that was read with it
  base::biased_mutex lock_;
  arena blocks_;
  std::shared_ptr<void const> home_lifetime_;  // so that no other stream gets that object
  slabs slots_;
  pending_queue pending_;
  std::map<address, aliased_handle> handles_;  // by address
  // mapped without access, because the driver refused all else; tried again when memory is released
  std::vector<released> unusable_;
  // Of a graph's pool: bytes of reserved blocks that its handles have left, and where they are mapped still.
  std::size_t left_behind_ = 0;
  base::atomic<unsigned> borrowed_{0};
  int wanted_ = 0;                       // fences of the home that still come early: another stream looked here
  int unwanted_ = 0;                     // fences of the home since another stream looked here
  std::size_t pending_since_fence_ = 0;  // bytes that wait for other streams without a fence since
  clock::stamp came_unstamped_;          // the home's, when a block last came free that has no stamp of the home
  observe::heap_counters counts_;
  std::vector<thread_cache*> caches_;
  observe::cached_slots cached_before_;     // counts of caches that are gone
  std::size_t peer_bytes_ = 0;              // of handles that other devices may use
  heap_index::rows listed_ = 0;             // its rows in the index
  base::single_writer<memory_pool*> pool_;  // changes with the lock, under mapping_lock::exclusive
  // Blocks of a sleeping heap keep their addresses and count as freed. Its unmapped memory serves no request.
  base::single_writer<bool> asleep_{false};
  // Bits are set under mapping_lock::exclusive, and cleared at any time; both under heap_table's lock
  base::atomic<std::uint64_t> readers_{0};
  // Calls that found it as their stream's heap in their pool, and hold no lock meanwhile: it goes to no other stream
  // or pool (heap_table). Raised with the lock.
  base::atomic<unsigned> callers_{0};
};

}  // namespace weir::memory
