// Handles come and go in several threads at once, or stay while one thread looks at all of them.
// Threads: any. A thread that holds `flowing` does not take it again. No heap's lock is held.
#pragma once
#include <cstdint>
#include <utility>

#include "runtime/base/sync.h"

namespace weir::memory {

class traffic {
 public:
  class [[nodiscard]] flowing {
   public:
    explicit flowing(traffic& t) : of_(t) {
      base::unique_lock hold(t.lock_);
      t.changed_.wait(hold, [&] { return !t.halted_; });
      ++t.under_way_;
    }
    ~flowing() {
      base::lock_guard const hold(of_.lock_);
      ++of_.ended_;
      if (counting::value) ++*counting::value;
      if (--of_.under_way_ == 0 && of_.halted_) of_.changed_.notify_all();
    }
    flowing(flowing const&) = delete;
    flowing& operator=(flowing const&) = delete;

   private:
    traffic& of_;
  };
  class [[nodiscard]] halt {
   public:
    explicit halt(traffic& t) : of_(t) {
      base::unique_lock hold(t.lock_);
      t.changed_.wait(hold, [&] { return !t.halted_; });
      t.halted_ = true;
      t.changed_.wait(hold, [&] { return t.under_way_ == 0; });
    }
    ~halt() {
      base::lock_guard const hold(of_.lock_);
      of_.halted_ = false;
      of_.changed_.notify_all();
    }
    halt(halt const&) = delete;
    halt& operator=(halt const&) = delete;

   private:
    traffic& of_;
  };

  // For a thread that looks for memory: what is on its way is in no list,
  // and not to be had while it is not there.
  class others {
   public:
    explicit others(traffic& t) : of_(t), outer_(std::exchange(counting::value, &own_)) { any(); }
    others(others const&) = delete;
    ~others() { counting::value = outer_; }
    // Did handles come or go by other threads at some time since it was made, or asked last?
    bool any() {
      base::lock_guard const hold(of_.lock_);
      std::uint64_t const since = of_.ended_ - std::exchange(before_, of_.ended_);
      return since > std::exchange(own_, 0) || of_.under_way_ > 0;
    }

   private:
    traffic& of_;
    std::uint64_t before_ = 0, own_ = 0;
    std::uint64_t* const outer_;
  };

 private:
  struct of_own;
  // where a thread that looks counts its own
  using counting = base::thread_pointer<of_own, static_cast<std::uint64_t*>(nullptr)>;

  // that handles come and go is no choice of a schedule's: only a halt is, by its notifications
  base::mutex lock_{base::quiet};
  base::condition changed_;
  int under_way_ = 0;    // under lock_
  std::uint64_t ended_ = 0;  // under lock_: times that some came or went
  bool halted_ = false;  // under lock_
};

}  // namespace weir::memory
