// One stream's memory: its blocks behind one lock, the caches of threads, its handles, its row in the index.
// Threads: any. One heap's lock at a time, and no driver call under it but the notices for NVTX.
//
// Invariant: a slot is in at most one cache or outbox, and its state is `cached` exactly then.
//            The index lists what the heap has.
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
#include "runtime/memory/heap/thread_cache.h"
#include "runtime/memory/space/alloc_request.h"
#include "runtime/memory/space/device_context.h"

namespace weir::memory {

class stream_heap {
 public:
  stream_heap(device_context& d, heap_index& all, clock::timeline& t)
      : of(d), index(all), number(all.size()), way(thread_table::way_of(&t)), home(&t), home_held(t.hold()) {}

  // Memory that is mapped here. Null: nothing mapped fits. Require the lock.
  void* take(alloc_request const&);
  void* take_or_shed(alloc_request const&);
  void* take_anywhere(alloc_request const&);  // blocks where runs would lie, and runs among blocks
  void* hand_out(piece&, alloc_request const&, clock::timeline* other_home);
  void* hand_out(slabs::taken, alloc_request const&);
  void cut_run(piece& run, int size_class);  // Throws: bad_alloc; the run is free again then
  void return_run(slab&) noexcept;
  std::size_t shed_cells();  // bytes of its runs that are free pieces now

  // Memory that waits for other streams. Require the lock.
  std::size_t settle();  // by what is known; bytes that came free
  // no stream uses it after the arena's stamp `freed`
  void settled(held_block const&, std::uint64_t freed) noexcept;
  void note_waiting() noexcept;  // what outboxes hold, for the peaks, before any block is pending no more
  void finish();                 // Blocks: until all that its blocks wait for is complete. Requires: no lock

  // Caches of threads (stream_heap_caches.cpp). refill, spill, open and post require the lock and the cache's thread.
  thread_cache* cache_here() noexcept;  // the calling thread's, null: none is of use. Requires: no lock
  void refill(thread_cache&, int size_class) noexcept;
  void spill(thread_cache&, int size_class) noexcept;
  bool open(thread_cache&) noexcept;  // false: it is not to be opened
  // Takes a freed slot that `user` still uses. false: not by the outbox. due: a fence of `user` is due
  bool post(thread_cache&, slabs::taken, clock::timeline& user, clock::stamp, bool& due) noexcept;
  bool may_wait_in_outbox(region const&, void const*, clock::timeline const& user) const noexcept;
  std::size_t send_home(thread_cache&) noexcept;  // bytes. Requires: the lock; shut, or by its own thread
  std::size_t empty(thread_cache&) noexcept;      // bytes. Requires: the lock, shut
  std::size_t shut_and_empty() noexcept;          // all threads' caches; bytes. Requires: the lock
  std::size_t empty_caches();                     // likewise, and sheds cells. Requires: no lock
  std::size_t empty_outboxes();                   // what is in them is pending then. Requires: no lock
  void leave(thread_cache&) noexcept;             // the cache's thread ends, or the heap does. Requires: no lock

  // A copy's look: the live block at the address, marked for that stream. Requires: the lock
  struct range {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  range use(region&, address, clock::timeline& user) noexcept;

  // Handles of this heap. Require the lock.
  homed_handle const& homed(handle const&);    // Requires: no lock, its home reserved
  void note_mapped(handle const&) noexcept;    // the driver gave it: counted and told
  void note_unmapped(handle const&) noexcept;  // the driver has it back
  void note_readers(handle&, std::uint64_t more) noexcept;
  void tell_mapped(handle const&, observe::action) const noexcept;  // to the history

  // Bytes given back between two fences of a stream: a share of what the heap holds.
  static constexpr std::size_t fence_least = 16 << 20;
  std::size_t fence_after(int halvings) const noexcept {
    return of.fence_interval ? of.fence_interval
                             : std::max(fence_least, static_cast<std::size_t>(counts.bytes_mapped()) >> halvings);
  }
  // Frees that no other stream looks for are fenced half as often each time, down to a sixteenth.
  std::size_t fence_at_home_after() const noexcept {
    return fence_after(sought ? 5 : 0) << (of.fence_interval ? 0 : std::min(quiet, 4));
  }

  device_context& of;
  heap_index& index;         // of all heaps of the device
  std::size_t const number;  // among them
  std::size_t const way;     // where threads find their cache of it by a slab
  // guards all below, and changes of `home`: numbers of stamps belong to the home read with it
  mutable base::owned_mutex lock;
  base::atomic<clock::timeline*> home;
  std::shared_ptr<void const> home_held;  // so that no other stream has that object
  arena pieces;
  slabs small;
  pending_blocks pending;
  std::map<address, homed_handle> handles;  // by place
  // mapped without access, because the driver refused all else; tried again when memory goes back
  std::vector<released> unusable;
  std::size_t freed_since_fence = 0;   // bytes that are free at home
  base::atomic<unsigned> borrowed{0};  // blocks of other heaps since it last got pages, or was refused some for that
  int sought = 0;                      // fences at home that still come soon: another stream looked for memory here
  int quiet = 0;                       // fences at home since another stream looked for memory here
  std::size_t held_since_fence = 0;    // bytes that wait for other streams, which were not fenced since
  observe::tally counts;
  std::vector<thread_cache*> caches;  // of threads, with small blocks of this heap
  // The only one of them, where this heap is its device's only one. Its thread may write `counts` inside
  // its own calls; every other thread shuts it before, which section does.
  thread_cache* sole = nullptr;
  void hear() noexcept;                          // what `sole` has not told. Requires: sole, the lock
  void caches_changed() noexcept;                // Requires: the lock
  void share(observe::shared_levels&) noexcept;  // Requires: the lock
  observe::lent_slots lent_before;               // what caches counted that are gone
  std::size_t peer_bytes = 0;                    // of handles that other devices may use
  heap_index::rows listed = 0;                   // in the index, as what may have something for others
  // other devices that each handle is open to, a bit each.
  // More while mapping halts, fewer at any time: changed under heap_table's lock
  base::atomic<std::uint64_t> readers{0};

  heap_index::rows to_be_listed() const noexcept;  // as heap_index.h says. Requires: the lock
  void list() noexcept {                           // likewise
    if (heap_index::rows const now = to_be_listed(); now != listed) index.list(number, std::exchange(listed, now), now);
  }
  // Frees on an external stream are fenced at once, so its heap has no caches.
  bool cacheable() const noexcept { return home.load(base::memory_order_acquire)->alive() != clock::life::foreign; }

 private:
  void run_gone(std::size_t bytes) noexcept;  // to the counters
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(sizeof(base::owned_mutex) == 72 && offsetof(stream_heap, lock) == 32 &&
              offsetof(stream_heap, home) == 104);
static_assert(offsetof(stream_heap, pieces) == 128);
#pragma GCC diagnostic pop

// Holds a heap, hears what its one cache has not told, counts the free pieces that come and go
// meanwhile, and lists it by what it has then.
class section {
 public:
  explicit section(stream_heap& m) : hold_(m.lock), heap_(m), before_(m.pieces.free_pieces()) {
    if (m.sole) m.hear();
  }
  ~section() {
    if (heap_.pieces.free_pieces() != before_)
      heap_.counts.free_pieces(static_cast<std::int64_t>(heap_.pieces.free_pieces()) -
                               static_cast<std::int64_t>(before_));
    heap_.list();
  }

 private:
  base::owned_lock hold_;
  stream_heap& heap_;
  std::size_t const before_;
};

}  // namespace weir::memory
