// Which heap a stream allocates from, and all heaps of a device.
// Threads: any. Its lock is taken before a heap's.
//
// Invariant: a living stream has one heap. A heap whose stream has retired, with all work complete, serves the
//            next stream that comes.
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

  stream_heap& of(clock::timeline&);  // made when there is none. Throws: bad_alloc
  std::vector<stream_heap*> all() const;
  // Calls `act` with the heap of that stream, if it has one, under the table's lock.
  template <class Do>
  void if_any(clock::timeline const& home, Do act) const {
    base::lock_guard const hold(making_);
    auto const found = by_stream_.find(home.id());
    if (found != by_stream_.end()) act(*found->second);
  }
  // The heaps that may have so much for a block of `mine`, some of many: others another time.
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

  std::size_t settle_known() const;  // by what is known, not in deterministic mode; bytes that came free
  std::vector<observe::tally const*> tallies() const;
  observe::lent_slots cached() const;  // what thread caches hold

  // Whom the memory of one stream, or of all with those to come, is open to. A bit each.
  void add_readers(stream_heap& one, std::uint64_t readers);
  bool add_readers_of_all(std::uint64_t readers, std::size_t known);  // false: there are more heaps than that
  void remove_readers(std::uint64_t);
  void remove_own_readers(clock::timeline& home) noexcept;

  // For the end of the device's memory, when no other thread is there.
  std::vector<std::unique_ptr<stream_heap>> const& at_the_end() const noexcept { return heaps_; }

  heap_index index;                         // all heaps
  base::atomic<std::size_t> scan_start{0};  // which streams a miss asks, where there are many

 private:
  stream_heap& find(clock::timeline&);
  stream_heap* inherit(clock::timeline& heir);  // Requires: making_
  void ask_the_retired();                       // whether their work is complete, so that they can be inherited

  device_context& of_;
  mutable base::mutex making_;  // guards the three below
  std::uint64_t readers_ = 0;   // whom memory of a stream that comes is open to
  std::vector<std::unique_ptr<stream_heap>> heaps_;
  std::unordered_map<std::uint64_t, stream_heap*> by_stream_;
  std::array<base::atomic<stream_heap*>, 64> recent_{};  // by stream id: where to look first
};

}  // namespace weir::memory
