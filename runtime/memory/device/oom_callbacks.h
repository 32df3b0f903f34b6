// The user's callbacks, a late step of the out-of-memory ladder, and what weir itself frees beside them.
// Threads: any. No lock is held while one runs. remove() blocks until no other thread runs it.
#pragma once
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/memory/device/allocator.h"

namespace weir::memory {

class oom_callbacks {
 public:
  enum class kind : bool { at_once, waits };  // waits: weir's own alone
  std::uint64_t add(ladder_callback, void* state, int order, kind = kind::at_once);
  void remove(std::uint64_t) noexcept;
  // In order; true: one of them freed something. An allocation made in a callback calls none, and just fails.
  bool call(memory_report const&);
  bool wait(memory_report const&);                                   // likewise, those that wait for work first
  bool spill(memory_report const&);                                  // likewise, by pools under a spill
  void set_spiller(pool_spiller* s) noexcept { spiller_.store(s); }  // null: none. Outlives its use
  bool spills() const noexcept { return spiller_.load() != nullptr; }
  bool wake(memory_pool& p, source_location at) const {
    pool_spiller* const s = spiller_.load();
    return s && s->wake(p, at);
  }

 private:
  class calling;
  bool call_each(memory_report const&, kind);
  bool begin(std::uint64_t thread);  // false: it has begun
  struct entry {
    std::uint64_t id;
    int order;
    kind is;
    ladder_callback run;
    void* state;
  };
  struct caller {
    std::uint64_t thread, in;  // in: the callback that it runs; 0: between two
  };
  base::mutex lock_;
  base::condition done_;
  std::vector<entry> all_;       // under lock_
  std::vector<caller> running_;  // under lock_
  std::uint64_t next_ = 1;       // under lock_
  base::atomic<pool_spiller*> spiller_{nullptr};
};

}  // namespace weir::memory
