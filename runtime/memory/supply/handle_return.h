// Releases handles that are wholly free and complete to the driver.
// Threads: any. Holds a heap's lock to choose and to note, never over a driver call.
//
// Invariant: a refused release leaves all counts unchanged.
#pragma once
#include "runtime/memory/supply/handle_mover.h"

namespace weir::memory {

class handle_return {
 public:
  handle_return(device_context& of, heap_table& heaps, physical_memory& memory, handle_mover& mover)
      : of_(of), heaps_(heaps), memory_(memory), mover_(mover) {}

  // Return bytes that the driver has back. only: of that pool; null: of all
  std::size_t some(std::size_t want, memory_pool const* only = nullptr);
  // freed: only blocks that were freed up to then, if that stream is the home; null: all
  std::size_t of(stream_heap&, std::size_t want, clock::stamp const* freed = nullptr);
  // What the driver refused once may succeed now. Returns: bytes that it has back
  std::size_t retry_refused() {
    mover_.retry_stuck();
    return memory_.return_orphans();
  }
  std::size_t one(stream_heap&, released&);  // unmaps what was reserved, and commits

 private:
  struct leaving {
    std::vector<released> all{};
    clock::stamp waits_for{};  // the next one has to be complete before more may go; number 0: no more may
  };
  std::size_t release_unusable(stream_heap&);  // Returns: bytes that the driver has back
  // Handles that are wholly free and complete. freed: as of(). No driver call
  leaving reserve_complete(stream_heap&, std::size_t want, clock::stamp const* freed);
  bool completes_when_asked(clock::stamp, clock::stamp const* freed);  // False: it is not complete, or may not go
  std::size_t release_segment(stream_heap&, released&);

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  handle_mover& mover_;
};

}  // namespace weir::memory
