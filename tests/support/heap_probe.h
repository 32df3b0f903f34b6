// Breaks the books of a heap, one at a time, so that a test sees that they are checked.
// Threads: its test's thread, while no other uses the heap.
#pragma once
#include "runtime/memory/heap/session.h"

namespace weir::memory {

struct heap_probe {
  static observe::heap_counters& counts(stream_heap& m) noexcept { return m.counts_; }
  static void set_fences_that_nobody_wanted(stream_heap& m, int n) noexcept { m.unwanted_ = n; }
  // Its own copy of its rows alone
  static void say_listed(stream_heap& m, heap_index::rows now) noexcept { m.listed_ = now; }
  static void relist(stream_heap& m, heap_index::rows now) noexcept {
    m.index_.list(m.number_, std::exchange(m.listed_, now), now);
  }
};

}  // namespace weir::memory
