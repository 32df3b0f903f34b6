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
  using streams_asked = boost::container::small_vector<clock::stream_clock*, 2>;
  struct outcome {
    clock::stream_clock* to_ask = nullptr;  // it may be captured and has to be asked first; nothing has changed then
    memory_pool* drained = nullptr;         // as deallocate()
  };
  // Throws also: bad_alloc, with nothing changed
  outcome take_back(void*, clock::stream_clock* last_use, source_location, streams_asked const&);
  void ask(clock::stream_clock&, source_location) const;
  void forget_user(void*, clock::stream_clock&) noexcept;      // Requires: its use of the block is complete
  // a stream that the block would have to wait for; null: none
  clock::stream_clock* busy_user(void*, clock::stream_clock* last_use) const noexcept;
  void announce_free(block_ref const&, clock::stream_clock& home, clock::stream_clock* last_use, source_location) const;

  device_context& of_;
  heap_table& heaps_;
  graph_pools& graphs_;
};

}  // namespace weir::memory
