// Tells a caller when to look for memory that stays unused: four times per idle period.
// Threads: any.
#pragma once
#include <cstdint>

#include "runtime/base/sync.h"

namespace weir::base {

class idle_watch {
 public:
  explicit idle_watch(std::int64_t after_ns) noexcept : after_(after_ns) {}
  void set_after(std::int64_t ns, std::int64_t now) noexcept {  // 0: never. now: now_ns()
    last_.store(now, memory_order_relaxed);
    after_.store(ns, memory_order_relaxed);
  }
  std::int64_t after() const noexcept { return after_.load(memory_order_relaxed); }
  // Of concurrent callers, one gets true.
  bool is_time(std::int64_t now) noexcept {
    std::int64_t const after = after_.load(memory_order_relaxed);
    std::int64_t last = last_.load(memory_order_relaxed);
    return after != 0 && now - last >= after / 4 && last_.compare_exchange(last, now);
  }

 private:
  atomic<std::int64_t> after_, last_{0};
};

}  // namespace weir::base
