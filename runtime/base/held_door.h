// Whether the thread is behind a door to a heap (runtime/memory/heap/session.h), for rules. Only Debug builds count:
// a planted defect rebuilds one source, and a count that some sources keep would be wrong.
// Threads: each has its own.
#pragma once
#include "runtime/base/rule.h"
#include "runtime/base/sync_thread_value.h"

namespace weir::base {

#ifndef NDEBUG
class held_door {
 public:
  held_door() noexcept {
    WEIR_RULE(!by_this_thread(), "a thread holds two doors to heaps");
    held::value = true;
  }
  ~held_door() { held::value = false; }
  held_door(held_door const&) = delete;
  static bool by_this_thread() noexcept { return held::value; }

 private:
  using held = thread_value<held_door, bool>;
};
#else
struct held_door {
  static constexpr bool by_this_thread() noexcept { return false; }
};
#endif

}  // namespace weir::base
