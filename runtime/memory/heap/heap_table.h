// Which heap a stream allocates from, and all heaps of a device.
// Threads: any. Its lock is taken before a heap's.
//
// Invariant: a live stream has one heap. A retired stream's heap, all work complete, serves the next new one.
#pragma once
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {

class heap_table {
 public:
  explicit heap_table(device_context& of) : of_(of) {}

  stream_heap& of(clock::stream_clock&);  // made if missing. Throws: bad_alloc
  std::vector<stream_heap*> all() const;
  // Calls `act` with the heap of that stream, if any, under the table's lock.
  template <class Do>
  void if_any(clock::stream_clock const& home, Do act) const {
    base::lock_guard const hold(making_);
    auto const found = by_stream_.find(home.id());
    if (found != by_stream_.end()) act(*found->second);
  }
  // Heaps that may have `bytes` for `mine`, from scan_start on, until one is `enough`; at most `most` a call.
  template <class Enough>
  void donors_for(stream_heap const& mine, std::size_t bytes, std::size_t most, Enough enough) const {
    std::size_t left = most;
    index.some(heap_index::at_least(bytes), index.size() > most ? scan_start.load(base::memory_order_relaxed) : 0,
               [&](stream_heap& m) {
                 if (&m == &mine || !may_lend(m, mine)) return false;
                 return enough(m) || --left == 0;
               });
  }
  static bool may_lend(stream_heap const& other, stream_heap const& mine) noexcept {
    return (mine.readers.load() & ~other.readers.load()) == 0;
  }

  std::size_t reclaim_known() const;  // by what is known, not in deterministic mode; bytes that became free
  std::vector<observe::heap_counters const*> heap_counts() const;
  observe::cached_slots cached() const;  // what thread caches hold

  // The devices that memory of one heap, or of all heaps and future ones, is open to. A bit each.
  void add_readers(stream_heap& one, std::uint64_t readers);
  bool add_readers_of_all(std::uint64_t readers, std::size_t known);  // false: there are more than `known` heaps
  void remove_readers(std::uint64_t);
  void remove_own_readers(clock::stream_clock& home) noexcept;

  // For the end of the device's memory. Requires: no other thread.
  std::vector<std::unique_ptr<stream_heap>> const& at_the_end() const noexcept { return heaps_; }

  heap_index index;                         // all heaps
  base::atomic<std::size_t> scan_start{0};  // where a miss begins among many heaps

 private:
  stream_heap& find(clock::stream_clock&);
  stream_heap* inherit(clock::stream_clock& heir);  // Requires: making_
  void ask_the_retired();                       // whether their work is complete, so that they can be inherited

  device_context& of_;
  mutable base::mutex making_;  // guards the three below
  std::uint64_t readers_ = 0;   // the devices that a new heap is open to
  std::vector<std::unique_ptr<stream_heap>> heaps_;
  std::unordered_map<std::uint64_t, stream_heap*> by_stream_;
  std::array<base::atomic<stream_heap*>, 64> recent_{};  // by stream id: looked at first
};

}  // namespace weir::memory
