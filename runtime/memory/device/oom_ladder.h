// The out-of-memory ladder: recovery steps, cheapest first. After each the lists are searched again.
// Threads: any. No lock is held while a driver call or a user's callback runs.
// Blocks: until the oldest fence is complete, in that step, or else until a graph that the program has let go;
// in deterministic mode, if no collective is under way, until all memory is. weir waits for a whole device only for
// a retired stream without a fence, and when it releases a segment.
//
// Invariant: a refused allocation changes only what is cached, and everything works afterwards.
#pragma once
#include "runtime/memory/device/graph_pools.h"
#include "runtime/memory/device/memory_audit.h"
#include "runtime/memory/device/oom_callbacks.h"
#include "runtime/memory/device/reuse.h"
#include "runtime/memory/supply/growth.h"

namespace weir::memory {

class oom_ladder {
 public:
  oom_ladder(device_context& of, heap_table& heaps, physical_memory& memory, growth& more, block_reuse& reuse,
             completion_poller& completion, graph_pools& graphs, handle_return& back, memory_audit const& audit,
             oom_callbacks& callbacks)
      : of_(of),
        heaps_(heaps),
        memory_(memory),
        growth_(more),
        reuse_(reuse),
        completion_(completion),
        graphs_(graphs),
        return_(back),
        audit_(audit),
        callbacks_(callbacks) {}

  void* climb(stream_heap& mine, alloc_request const&, driver::status why);  // Throws: out_of_memory
  bool can_never_hold(std::size_t bytes, memory_pool const&) const;

 private:
  class ascent;
  [[noreturn]] void refuse(alloc_request const&, memory_report);              // Throws: out_of_memory
  [[noreturn]] void refuse_call(driver::status, alloc_request const&) const;  // Throws: as throw_refusal
  void give_pages(alloc_request const&, memory_pool const* only);
  void* between_blocks(stream_heap& mine, alloc_request const&);  // null: no place has so much room

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  growth& growth_;
  block_reuse& reuse_;
  completion_poller& completion_;
  graph_pools& graphs_;
  handle_return& return_;
  memory_audit const& audit_;
  oom_callbacks& callbacks_;
};

}  // namespace weir::memory
