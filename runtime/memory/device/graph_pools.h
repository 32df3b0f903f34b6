// The pools that captured streams of one device allocate from.
// Threads: any. Its lock is a leaf, and is not held during driver calls.
//
// Invariants
//   a graph's pool lives while anything holds it: the program, or a graph of the driver that was captured into it,
//     that graph's executables and their launches
//   a block of another pool that is freed inside a capture and may be used there waits for the capture's keeper. The
//     keeper is let go when the driver's graph of that capture, its executables and their launches are gone
#pragma once
#include <list>
#include <map>

#include "runtime/memory/device/graph_hold.h"
#include "runtime/memory/heap/heap_table.h"
#include "runtime/memory/space/physical_memory.h"

namespace weir::memory {

class graph_pools {
 public:
  graph_pools(device_context& of, heap_table& heaps, physical_memory& memory)
      : of_(of), heaps_(heaps), memory_(memory) {}
  ~graph_pools();

  struct one {
    memory_pool* pool = nullptr;            // null: not known
    clock::stream_clock* keeper = nullptr;  // of the capture
  };
  // Of the capture that the lane is in. Makes the pool, and lets the driver's graph hold it, at the first call of a
  // capture. Throws: invalid_use (the capture is spoiled), driver_error, device_lost, bad_alloc
  one of(clock::stream_clock const& lane, source_location);
  one known(clock::stream_clock const& lane) const noexcept;     // no driver call
  memory_pool const* of_hold(graph_hold const&) const noexcept;  // null: nothing was allocated
  // Pools that nothing holds any more become ordinary memory. Requires: no lock
  void end_those_over() noexcept;
  // Waits for launches of graphs that the program has let go. True: a pool became ordinary memory. Throws: bad_alloc
  // Blocks: until they are complete, or for a while if their streams are not known or ranks may wait for this thread
  bool await_those_ending();

 private:
  struct captured {
    std::uint64_t number = 0;
    clock::stream_clock* keeper = nullptr;
    std::shared_ptr<graph_life> life;  // of the driver's graph
  };
  struct entry {
    std::shared_ptr<graph_life> life;  // names the hold: a later one may have its address
    memory_pool* pool = nullptr;
    std::list<captured> captures;
    bool awaited_in_vain = false;  // something that weir does not know keeps it
  };
  struct contents {
    std::vector<entry> all;
    std::map<std::uint64_t, one> by_capture;
  };
  // What lets the driver's graph of the stream's capture hold that memory. Returns: the graph's life
  // Throws: as of()
  std::shared_ptr<graph_life> kept_by_the_graph(clock::stream_clock&, std::shared_ptr<graph_life> const& memory,
                                                source_location) const;
  void end_captures() noexcept;  // whose graphs are gone
  void end(captured const&) const noexcept;
  bool await_launches(graph_life const&) const;
  bool is_over_in_time(graph_life const&) const;  // the driver has no holder left

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  base::guarded<contents> contents_;
  base::atomic<std::uint64_t> seen_changed_{graph_life::changed()};
};

}  // namespace weir::memory
