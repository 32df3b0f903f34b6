// Asks the driver what has completed, and waits for it.
// Threads: any. No lock is held while the driver is asked.
#pragma once
#include <vector>

#include "runtime/memory/heap/heap_table.h"

namespace weir::memory {

class completion_poller {
 public:
  completion_poller(device_context& of, heap_table& heaps) : of_(of), heaps_(heaps) {}

  // Asks about so many fronts of one heap, then settles; bytes that came free.
  std::size_t poll(stream_heap&, std::size_t questions = ~std::size_t{0});
  // Asks about free blocks of other heaps that would do; bytes that are complete.
  std::size_t poll_others(stream_heap& mine, alloc_request const&, std::size_t streams = ~std::size_t{0},
                          std::size_t most_donors = ~std::size_t{0});
  void settle_complete();                                       // all heaps' fronts, until no answer is news
  bool wait_for_oldest(std::vector<clock::stamp> const& also);  // Blocks. false: nothing to wait for
  void finish_all();  // Blocks. Ensures: nothing waits, and all that is free is known to be complete

 private:
  clock::stamp oldest_unknown(stream_heap&) const;  // of free pieces, not known to be complete. Requires: its lock

  device_context& of_;
  heap_table& heaps_;
};

}  // namespace weir::memory
