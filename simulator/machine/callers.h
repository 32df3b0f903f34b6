// The threads that call a machine, and those of the process that may still come.
// Threads: any.
#pragma once
#include <cstdint>
#include <memory>
#include <set>

#include "runtime/base/sync.h"

namespace weir::driver::sim {

class callers {
 public:
  callers();
  void add_this_thread() const;                    // until it ends. Idempotent, quick the second time
  static void this_thread_never_calls() noexcept;  // any machine: it is a machine's worker
  int count() const noexcept { return static_cast<int>(all_->lock()->size()); }
  // Whether the process has a thread that has not called, and may: none_has_come() has not seen it, or it has run
  // since.
  bool others_may_come() const;
  // All that have not called were waited for in vain, such as a library's. They count again once they have run.
  void none_has_come() const;

  using numbers = base::guarded<std::set<int>>;  // of threads, by the system

 private:
  std::shared_ptr<numbers> const all_ = std::make_shared<numbers>();
  std::uint64_t const machine_;
};

}  // namespace weir::driver::sim
