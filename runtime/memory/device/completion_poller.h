// Queries the driver for completed work, and waits for it.
// Threads: any. No lock is held during a query.
#pragma once
#include <vector>

#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class completion_poller {
 public:
  completion_poller(device_context& of, heap_table& heaps) : of_(of), heaps_(heaps) {}

  // Queries up to `questions` fronts of one heap, again while an answer is new. Returns: bytes reclaimed.
  std::size_t poll(stream_heap&, std::size_t questions = ~std::size_t{0});
  // Queries free blocks that would fit, of up to `streams` other heaps. Returns: bytes found complete.
  std::size_t poll_others(stream_heap& mine, alloc_request const&, std::size_t streams = ~std::size_t{0},
                          std::size_t most_donors = ~std::size_t{0});
  void reclaim_complete();                                      // queries all heaps' fronts until no answer is new
  bool wait_for_oldest(std::vector<clock::stamp> const& also);  // Blocks. false: nothing completed
  void finish_all();  // Blocks. Ensures: nothing is pending, and all free blocks are known to be complete

 private:
  clock::stamp oldest_unknown(session const&) const;  // of free blocks, not known to be complete

  device_context& of_;
  heap_table& heaps_;
};

}  // namespace weir::memory
