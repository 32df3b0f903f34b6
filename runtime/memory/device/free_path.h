// Frees a block: collects the stamps of its users, frees or defers, and records fences that are due.
// Threads: any. Holds the lock of the block's heap; fences, three driver calls each, are recorded after it.
// Blocks: only without host memory, until the block's users are complete.
//
// Invariant: a free that throws has changed nothing.
#pragma once
#include <boost/container/small_vector.hpp>

#include "runtime/memory/device/graph_pools.h"

namespace weir::memory {

class free_path {
 public:
  free_path(device_context& of, heap_table& heaps, graph_pools& graphs) : of_(of), heaps_(heaps), graphs_(graphs) {}

  // As allocator::deallocate. Returns: the sleeping pool whose last block it was; null: another block
  memory_pool* deallocate(void*, clock::stream_clock* last_use, source_location);
  void fence_what_came_free(clock::stream_clock& home) noexcept;  // as allocator::fence_what_came_free

 private:
  // What one free has done before its block changes.
  struct streams_met {
    boost::container::small_vector<clock::stream_clock*, 2> asked{};  // whether they are captured
    bool waits = false;  // the host waits for users, instead of noting them
    boost::container::small_vector<clock::stream_clock*, 16> waited_for{};
  };
  struct outcome {                            // what comes before the free; both null: it is done
    clock::stream_clock* ask = nullptr;       // a stream that may be captured
    clock::stream_clock* wait_for = nullptr;  // a stream with work that may use the block
    memory_pool* drained = nullptr;           // as deallocate()
  };
  class attempt;
  // If something comes before the free, nothing has changed. Throws also: bad_alloc, with nothing changed
  outcome take_back(void*, clock::stream_clock* last_use, source_location, streams_met const&);
  void ask(clock::stream_clock&, source_location) const;
  static void refuse_if_in_host_function(clock::stream_clock const&, source_location);  // Throws: driver_error
  // The block that starts there. Throws: invalid_use
  block_ref must_start_at(session const&, void*, region*, source_location) const;
  // Calls `act` with each stamp that the block's next use has to come after, but for the home's own work, whose
  // number raises `since`.
  template <class Do>
  void each_stamp(session const&, block_ref const&, clock::stream_clock& its, clock::stream_clock* last_use,
                  std::uint64_t& since, Do act) const;
  // the stream of the first of these that is not ordered, complete or waited for; null: none
  clock::stream_clock* busy_user(session const&, block_ref const&, clock::stream_clock& its,
                                 clock::stream_clock* last_use, streams_met const&) const;
  void announce_free(session const&, block_ref const&, clock::stream_clock& its, clock::stream_clock* last_use,
                     source_location) const;

  device_context& of_;
  heap_table& heaps_;
  graph_pools& graphs_;
};

}  // namespace weir::memory
