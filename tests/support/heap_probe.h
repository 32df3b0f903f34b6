// Reads what no door shows, and breaks the books of a heap, one at a time, so that a test sees that they are checked.
// Threads: its test's thread, while no other uses the heap.
#pragma once
#include "runtime/memory/heap/session.h"

namespace weir::memory {

struct heap_probe {
  static observe::heap_counters& counts(stream_heap& m) noexcept { return m.counts_; }
  static bool is_owned(stream_heap& m) noexcept {
    quiet_session const in(m);
    return m.lock_.is_owned();
  }
  static std::size_t fence_at_home_after(stream_heap& m) noexcept { return m.fence_at_home_after(); }
  static void set_fences_that_nobody_wanted(stream_heap& m, int n) noexcept { m.unwanted_ = n; }
  // Its own copy of its rows alone
  static void say_listed(stream_heap& m, heap_index::rows now) noexcept { m.listed_ = now; }
  static void relist(stream_heap& m, heap_index::rows now) noexcept {
    m.index_.list(m.number_, std::exchange(m.listed_, now), now);
  }
};

}  // namespace weir::memory
