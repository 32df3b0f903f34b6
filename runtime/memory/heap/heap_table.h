// Which heap a stream allocates from in a pool, and all heaps and pools of a device.
// Threads: any. Its lock is taken before a heap's.
//
// Invariants
//   a live stream has at most one heap in each pool of the program
//   a heap goes to another stream or pool only while no call is in it (stream_heap::callers)
//   a retired stream's heap, all work complete, serves the next new one of its pool
//   a heap that an ended pool left serves any pool's next stream, once no block in it is in use and its newest free
//     stamp is complete. In deterministic mode its own stream alone gets it. Blocks in it may wait for their users if
//     three things hold: it stays with its stream, no graph holds one of them, and the pool is no graph's and has no
//     limit
//   so there are about as many heaps as streams in pools at one time, however many come and go
#pragma once
#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/memory/heap/session.h"

namespace weir::memory {

class heap_table {
 public:
  explicit heap_table(device_context& of);

  stream_heap& of(clock::stream_clock&, memory_pool&);  // made if missing. Throws: bad_alloc
  stream_heap& of(clock::stream_clock& t) { return of(t, rest_); }
  stream_heap* if_made(clock::stream_clock const&, memory_pool const&) const noexcept;  // null: there is none
  // Whether memory of that stream alone is open to some devices, in whichever pool.
  bool has_own_readers(clock::stream_clock const&) const noexcept;
  std::uint64_t readers_of(clock::stream_clock const&) const noexcept;  // that a new heap of it is open to
  stream_heap* inherited(clock::stream_clock&, memory_pool&);  // null: nothing is left for it. Throws: bad_alloc
  // The heap of pages that streams share in that pool, made if missing. Throws: bad_alloc
  stream_heap& shared(memory_pool& p) { return of(shared_home(), p); }
  clock::stream_clock& shared_home();  // its home. Throws: bad_alloc
  clock::stream_clock* shared_home_if_made() const noexcept { return shared_home_.load(base::memory_order_acquire); }
  std::vector<stream_heap*> all(memory_pool const* of = nullptr) const;  // null: of all pools. Throws: bad_alloc
  // Calls `act` with each heap of that stream, under the table's lock.
  template <class Do>
  void each_of(clock::stream_clock const& home, Do act) const {
    base::lock_guard const hold(making_);
    auto const found = by_stream_.find(home.id());
    if (found == by_stream_.end())
      return;
    for (stream_heap* const m : found->second)
      act(*m);
  }

  memory_pool& rest() noexcept { return rest_; }                                  // for what names no pool
  memory_pool& pool_here() const noexcept;                                        // in force for the calling thread
  memory_pool& add_pool(memory_pool::kind, std::string name, std::size_t limit);  // Throws: bad_alloc
  static constexpr std::size_t kept_ended = 64;  // pools whose objects no later pool gets yet
  void close_pool(memory_pool&) noexcept;        // guards of it have no effect from now on; its memory stays in it
  // Its blocks stay as they are. Free pages of it serve others as before. Requires: mapping_lock::exclusive
  void end_pool(memory_pool&) noexcept;
  std::vector<memory_pool*> ended_asleep() const;  // that heaps are in still. Throws: bad_alloc
  // Heaps with more than `page` bytes that ended pools left, in which no block is live. Throws: bad_alloc
  std::vector<stream_heap*> left_idle(std::size_t page) const;
  void reset_peaks_of_pools() noexcept;
  std::vector<memory_pool const*> pools() const;  // all that have not ended, and what ended ones left
  // Heaps that may have `bytes` for `mine`, from scan_start on, until one is `enough`; at most `most` a call. Whether
  // one may lend is known under its lock alone.
  template <class Enough>
  void donors_for(stream_heap const& mine, std::size_t bytes, std::size_t most, Enough enough) const {
    std::size_t left = most;
    // If one call may ask all of them, it begins with the first.
    std::size_t from = 0;
    if (index.size() > most)
      from = scan_start.load(base::memory_order_relaxed);
    index.some(heap_index::at_least(bytes), from, [&](stream_heap& m) {
      if (&m == &mine || !may_lend(m, mine))
        return false;
      --left;
      return enough(m) || left == 0;
    });
  }
  static bool may_lend(stream_heap const& other, stream_heap const& mine) noexcept {
    return other.pool().serves(mine.pool()) && (mine.readers() & ~other.readers()) == 0;
  }

  // For a search that comes back to a heap: keeps it. Empty: by now it may not lend to `mine`.
  static heap_stay stay_to_lend(stream_heap& in, stream_heap const& mine) {
    session const its(in);
    return &in == &mine || may_lend(in, mine) ? heap_stay(its) : heap_stay();
  }
  // Whether it is still the heap of that stream in that pool. An ended pool's heap may have another home by now. What
  // names an ended pool is served outside of it.
  bool serves(excluded const&, clock::stream_clock const& home, memory_pool const&) const noexcept;

  std::size_t reclaim_known() const;  // by what is known, not in deterministic mode; bytes that became free
  std::vector<observe::heap_counters const*> heap_counts() const;
  struct counted {
    std::vector<observe::heap_counters const*> counts;
    observe::cached_slots cached;
    std::size_t mapped = 0;  // bytes
  };
  counted counts_of(memory_pool const&) const;  // of its heaps. Throws: bad_alloc
  observe::cached_slots cached() const;         // what thread caches hold

  // The devices that memory of one stream, or of all streams and future ones, is open to. A bit each.
  // False, and nothing is noted: the stream has other heaps than those that were opened.
  bool add_readers(clock::stream_clock& home, std::uint64_t readers, std::span<stream_heap* const> opened);
  bool add_readers_of_all(std::uint64_t readers, std::size_t known);  // false: there are more than `known` heaps
  void remove_readers(std::uint64_t);
  void remove_own_readers(clock::stream_clock& home) noexcept;

  // For the end of the device's memory. Requires: no other thread.
  std::vector<std::unique_ptr<stream_heap>> const& at_the_end() const noexcept { return heaps_; }

  heap_index index;                         // all heaps
  base::atomic<std::size_t> scan_start{0};  // where a miss begins among many heaps

 private:
  stream_heap* recent(clock::stream_clock const&, memory_pool const&) const noexcept;  // null: ask find()
  stream_heap& find(clock::stream_clock&, memory_pool&);
  // Null: no heap is left for it. Requires: making_
  stream_heap* existing_or_left(clock::stream_clock&, memory_pool&);
  stream_heap* in(clock::stream_clock const&, memory_pool const&) const;  // Null: none. Requires: making_
  std::uint64_t readers_for(std::vector<stream_heap*> const& of_stream) const noexcept;  // likewise
  bool have_own_readers(std::vector<stream_heap*> const& of_stream) const noexcept;      // Requires: making_
  stream_heap* inherit(clock::stream_clock& heir, memory_pool&);                         // Requires: making_
  bool takes_over(stream_heap&, clock::stream_clock& heir, memory_pool&);                // likewise
  bool may_inherit(excluded const&, clock::stream_clock& heir, memory_pool const&) const;
  bool use_is_complete(session const&, clock::stream_clock const& heir) const;
  void ask_the_retired();  // whether their work is complete, so that they can be inherited

  device_context& of_;
  std::uint64_t const number_;  // of this table, in the process
  mutable memory_pool rest_;    // what no pool of the program holds
  memory_pool left_;            // what ended pools left
  mutable base::mutex making_;  // guards the five below
  std::uint64_t readers_ = 0;   // the devices that a new heap is open to
  std::vector<std::unique_ptr<stream_heap>> heaps_;
  std::unordered_map<std::uint64_t, std::vector<stream_heap*>> by_stream_;  // what ended pools left is among them
  std::vector<std::unique_ptr<memory_pool>> pools_;                         // also ended ones that heaps are in
  std::vector<std::unique_ptr<memory_pool>> ended_;  // the oldest first: threads may look at them. Room for `pools_`
  base::atomic<bool> any_left_{false};               // a pool has ended
  std::array<base::atomic<stream_heap*>, 64> recent_{};      // by stream id: looked at first
  base::atomic<clock::stream_clock*> shared_home_{nullptr};  // made under making_
};

}  // namespace weir::memory
