// Many threads map and unmap handles (`flowing`), or handles stay while one thread examines all (`halt`).
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

  // For a thread that searches for memory: pages that others are mapping or unmapping are in no list yet.
  class others {
   public:
    explicit others(traffic& t) : of_(t), outer_(std::exchange(counting::value, &own_)) { any(); }
    others(others const&) = delete;
    ~others() { counting::value = outer_; }
    // Whether other threads map or unmap handles, or did since construction or the last call.
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
  // where a searching thread counts its own changes
  using counting = base::thread_pointer<of_own, static_cast<std::uint64_t*>(nullptr)>;

  // quiet: no choice of a schedule depends on mapping, only on a halt, by its notifications
  base::mutex lock_{base::quiet};
  base::condition changed_;
  int under_way_ = 0;    // under lock_
  std::uint64_t ended_ = 0;  // under lock_: `flowing` sections that ended
  bool halted_ = false;  // under lock_
};

}  // namespace weir::memory
