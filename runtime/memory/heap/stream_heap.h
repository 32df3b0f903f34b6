// One stream's heap: its blocks behind one lock, its thread caches, its handles, its row in the index.
// Threads: any. A thread holds one heap's lock at a time, and makes no driver call under it but NVTX notices.
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
      : of(d), index(all), number(all.size()), bucket(bucket_of(t, p)), home(&t), home_lifetime(t.hold()), pool(&p) {}

  // From mapped memory. Null: nothing mapped fits. Require the lock.
  void* take(alloc_request const&);
  void* take_or_shed(alloc_request const&);
  void* take_anywhere(alloc_request const&);  // blocks also where runs would lie, and runs among blocks
  // Of pages that streams share: a small block whose home is `user`. Requires: is_shared. Throws: bad_alloc
  void* take_for(clock::stream_clock& user, alloc_request const&);
  void give_to(clock::stream_clock& user, void* block, slab::spare_note) noexcept;  // names the home of a small block
  void* hand_out(heap_block&, alloc_request const&, clock::stream_clock* other_home);
  void* hand_out(slabs::taken, alloc_request const&);
  void cut_run(heap_block& run, int size_class);  // Throws: bad_alloc; the run is free again then
  void return_run(slab&) noexcept;
  std::size_t return_idle_cells();  // Returns: bytes of its runs that are free blocks now

  // Pending blocks. Require the lock.
  std::size_t reclaim();  // by what is known; bytes that became free
  // Requires: all use of the block is ordered before the stamp (home, freed)
  void reclaimed(pending_block const&, std::uint64_t freed) noexcept;
  void note_waiting() noexcept;  // counts deferred frees for the peaks; before a block is pending no more
  void finish();                 // Blocks: until the home and all that blocks wait for are complete. Requires: no lock

  // Thread caches. refill, spill, open and post require the lock and the cache's thread.
  thread_cache* cache_here() noexcept;  // the calling thread's; null: none is of use. Requires: no lock
  // Likewise; the thread then allocates from it without a lock. Requires: what its pools in force say
  thread_cache* cache_to_allocate() noexcept;
  void refill(thread_cache&, int size_class) noexcept;
  void spill(thread_cache&, int size_class) noexcept;
  bool open(thread_cache&) noexcept;  // false: it has to stay shut
  // Defers the free of a slot that `user` still uses. False: not deferred. due: a fence of `user` is due
  bool defer_free(thread_cache&, slabs::taken, clock::stream_clock& user, clock::stamp, bool& due) noexcept;
  bool may_defer_free(region const&, void const*, clock::stream_clock const& user) const noexcept;
  std::size_t flush(thread_cache&) noexcept;  // deferred frees become pending; bytes. Requires: lock; shut or owner
  std::size_t empty(thread_cache&) noexcept;  // bytes. Requires: the lock, shut
  std::size_t revoke_and_empty() noexcept;    // all caches; bytes. Requires: the lock
  std::size_t empty_caches();                 // likewise, and sheds cells. Requires: no lock
  std::size_t flush_deferred();               // deferred frees become pending. Requires: no lock
  void leave(thread_cache&) noexcept;         // the cache's thread ends, or the heap does. Requires: no lock

  // For a copy: the live block at the address, marked for that stream. Requires: the lock
  struct range {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  range use(region&, address, clock::stream_clock& user) noexcept;

  // Handles of this heap. Require the lock.
  aliased_handle const& aliased(handle const&);  // Requires: no lock, its address reserved
  void note_mapped(handle const&) noexcept;      // counts and reports it
  void note_unmapped(handle const&) noexcept;    // likewise
  void note_readers(handle&, std::uint64_t more) noexcept;
  void record_mapping(handle const&, observe::action) const noexcept;  // to the history
  void log_mapping(std::size_t bytes, char const* what) const noexcept;

  // Bytes freed between two fences of a stream: a share of what the heap has mapped.
  static constexpr std::size_t fence_least = 16 << 20;
  std::size_t fence_after(int halvings) const noexcept {
    return of.fence_interval ? of.fence_interval
                             : std::max(fence_least, static_cast<std::size_t>(counts.bytes_mapped()) >> halvings);
  }
  // While no other stream looks for memory here, each fence doubles the distance to the next, up to 16 times.
  std::size_t fence_at_home_after() const noexcept {
    return fence_after(wanted ? 5 : 0) << (of.fence_interval ? 0 : std::min(unwanted, 4));
  }

  device_context& of;
  heap_index& index;         // of all heaps of the device
  std::size_t const number;  // its number there
  std::size_t const bucket;  // the thread_table entry of a thread's cache for it
  base::atomic<clock::stream_clock*> home;
  // The only cache, if this is its device's only heap. Its thread may write `counts` inside its own calls.
  // Every other thread shuts it first, which section does.
  thread_cache* sole = nullptr;
  std::size_t freed_since_fence = 0;  // bytes freed that only the home has used
  // guards all below, both above, and changes of `home`: stamp numbers belong to the home that was read with it
  mutable base::biased_mutex lock;
  arena blocks;
  std::shared_ptr<void const> home_lifetime;  // so that no other stream gets that object
  slabs slots;
  pending_queue pending;
  std::map<address, aliased_handle> handles;  // by address
  // mapped without access, because the driver refused all else; tried again when memory is released
  std::vector<released> unusable;
  // Of a graph's pool: bytes of reserved blocks that its handles have left, and where they are mapped still.
  std::size_t left_behind = 0;
  void free_left_behind() noexcept;     // the pool has ended. Requires: the lock, and that mapping halts
  base::atomic<unsigned> borrowed{0};   // blocks of other heaps since it last got pages, or was refused some, for that
  int wanted = 0;                       // fences of the home that still come early: another stream looked here
  int unwanted = 0;                     // fences of the home since another stream looked here
  std::size_t pending_since_fence = 0;  // bytes that wait for other streams without a fence since
  clock::stamp came_unstamped;          // the home's, when a block last came free that has no stamp of the home
  observe::heap_counters counts;
  std::vector<thread_cache*> caches;
  void hear() noexcept;                          // counts what `sole` has not reported. Requires: sole, the lock
  void caches_changed() noexcept;                // Requires: the lock
  void share(observe::shared_levels&) noexcept;  // Requires: the lock
  observe::cached_slots cached_before;           // counts of caches that are gone
  std::size_t peer_bytes = 0;                    // of handles that other devices may use
  heap_index::rows listed = 0;                   // its rows in the index
  base::single_writer<memory_pool*> pool;        // changes with the lock, while mapping halts
  // Blocks of a sleeping heap keep their addresses and count as freed. Its unmapped memory serves no request.
  // Requires: the lock
  base::single_writer<bool> asleep{false};
  bool holds_blocks() const;  // that live, or are pending. Requires: the lock
  // Counts its live blocks and runs as freed (yes) or as allocated again. Returns: how many blocks.
  // Requires: the lock
  std::size_t count_asleep(bool yes) noexcept;
  // other devices that each handle is open to, a bit each. Bits are set while mapping halts, and cleared at
  // any time; both under heap_table's lock
  base::atomic<std::uint64_t> readers{0};
  // Calls that found it as their stream's heap in their pool, and hold no lock meanwhile: it goes to no other stream
  // or pool (heap_table). Raised with the lock.
  base::atomic<unsigned> callers{0};

  heap_index::rows to_be_listed() const noexcept;  // as heap_index.h says. Requires: the lock
  void list() noexcept {                           // likewise
    if (heap_index::rows const now = to_be_listed(); now != listed)
      index.list(number, std::exchange(listed, now), now);
  }
  // Every free on a borrowed stream is counted, so its heap has no caches. What an ended pool leaves serves
  // others only as whole pages. A sleeping pool's memory serves no request. A captured stream is asked at each
  // allocation.
  bool cacheable() const noexcept {
    auto const is = pool.get()->is;
    return home.load(base::memory_order_acquire)->alive() != clock::life::borrowed && is != memory_pool::kind::left &&
           is != memory_pool::kind::graph && !pool.get()->is_asleep() && !is_shared();
  }
  // Its small blocks are those of many streams: each names its own home (device/page_sharing.h).
  bool is_shared() const noexcept { return home.load(base::memory_order_acquire)->has_no_stream(); }
  bool is_of_graph() const noexcept { return pool.get()->is == memory_pool::kind::graph; }
  bool pages_stay() const noexcept { return pool.get()->pages_stay(); }
  // The home in reports: of a graph's memory the stream that was captured.
  clock::stream_clock& shown_home() const noexcept { return shown(*home.load()); }
  std::uint64_t shown_stream() const noexcept { return is_shared() ? 0 : shown_home().id(); }  // 0: of many
  static clock::stream_clock& shown(clock::stream_clock& home) noexcept {
    clock::stream_clock* const captured = home.stands_for();
    return captured ? *captured : home;
  }

 private:
  static std::size_t bucket_of(clock::stream_clock const& t, memory_pool const& p) noexcept {
    return (allocation_table::bucket_of(&t) + p.number() * 7) % thread_table::buckets;
  }
  void run_gone(std::size_t bytes) noexcept;     // to the counters
  slabs::taken free_slot(alloc_request const&);  // from a slab, or from a run that is cut now
  slabs::taken slot_freed_by(clock::stream_clock&, alloc_request const&) noexcept;  // that waits for it alone
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
// The lock begins with its owner's word: a call on its thread reads one line here.
static_assert(sizeof(base::biased_mutex) == 72 && offsetof(stream_heap, lock) == 56);
static_assert(offsetof(stream_heap, blocks) == 128);
#pragma GCC diagnostic pop

// Holds a heap's lock. Counts what `sole` has not reported and the change in free blocks; lists the heap.
class section {
 public:
  explicit section(stream_heap& m) : hold_(m.lock), heap_(m), before_(m.blocks.free_blocks()) {
    if (m.sole)
      m.hear();
  }
  ~section() {
    if (heap_.blocks.free_blocks() != before_)
      heap_.counts.free_blocks(static_cast<std::int64_t>(heap_.blocks.free_blocks()) -
                               static_cast<std::int64_t>(before_));
    heap_.list();
  }

 private:
  base::biased_lock hold_;
  stream_heap& heap_;
  std::size_t const before_;
};

// Keeps a heap with its stream and its pool after the lock is released; an ended pool's heap still leaves it.
class heap_stay {
 public:
  heap_stay() noexcept = default;
  explicit heap_stay(stream_heap& m) noexcept : heap_(&m) { m.callers.fetch_add(1); }  // Requires: the lock
  heap_stay(heap_stay&& o) noexcept : heap_(std::exchange(o.heap_, nullptr)) {}
  heap_stay& operator=(heap_stay&& o) noexcept {
    std::swap(heap_, o.heap_);
    return *this;
  }
  ~heap_stay() {
    if (heap_)
      heap_->callers.fetch_sub(1);
  }
  explicit operator bool() const noexcept { return heap_; }

 private:
  stream_heap* heap_ = nullptr;
};

}  // namespace weir::memory
