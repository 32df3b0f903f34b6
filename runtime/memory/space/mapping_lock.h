// Many threads map and unmap handles (`shared`), or handles stay while one thread examines all (`exclusive`).
// Threads: any. A thread that holds it does not take it again. No heap's lock is held.
#pragma once
#include <cstdint>
#include <utility>

#include "runtime/base/sync.h"

namespace weir::memory {

class mapping_lock {
 public:
  class [[nodiscard]] shared {
   public:
    explicit shared(mapping_lock& t) : of_(t) {
      base::unique_lock hold(t.lock_);
      t.changed_.wait(hold, [&] { return !t.exclusive_; });
      ++t.under_way_;
    }
    ~shared() {
      base::lock_guard const hold(of_.lock_);
      ++of_.ended_;
      // A thread that searches for memory subtracts its own changes (activity::any).
      if (counting::value)
        ++*counting::value;
      if (--of_.under_way_ == 0 && of_.exclusive_)
        of_.changed_.notify_all();
    }
    shared(shared const&) = delete;
    shared& operator=(shared const&) = delete;

   private:
    mapping_lock& of_;
  };
  class [[nodiscard]] exclusive {
   public:
    explicit exclusive(mapping_lock& t) : of_(t) {
      base::unique_lock hold(t.lock_);
      t.changed_.wait(hold, [&] { return !t.exclusive_; });
      t.exclusive_ = true;  // from here on no `shared` begins
      t.changed_.wait(hold, [&] { return t.under_way_ == 0; });
    }
    ~exclusive() {
      base::lock_guard const hold(of_.lock_);
      of_.exclusive_ = false;
      of_.changed_.notify_all();
    }
    exclusive(exclusive const&) = delete;
    exclusive& operator=(exclusive const&) = delete;

   private:
    mapping_lock& of_;
  };

  // For a thread that searches for memory: pages that others are mapping or unmapping are in no list yet.
  class activity {
   public:
    explicit activity(mapping_lock& t) : of_(t), outer_(std::exchange(counting::value, &own_)) {
      any();  // counts from here on
    }
    activity(activity const&) = delete;
    ~activity() { counting::value = outer_; }
    // Whether other threads map or unmap handles, or did since construction or the last call.
    bool any() {
      base::lock_guard const hold(of_.lock_);
      std::uint64_t const ended = of_.ended_ - before_, ended_here = own_;
      before_ = of_.ended_;
      own_ = 0;
      return ended > ended_here || of_.under_way_ > 0;
    }

   private:
    mapping_lock& of_;
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
  int under_way_ = 0;        // under lock_
  std::uint64_t ended_ = 0;  // under lock_: `shared` sections that ended
  bool exclusive_ = false;   // under lock_
};

}  // namespace weir::memory
