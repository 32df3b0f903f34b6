// A few threads that copy bytes between places of the host and do nothing else: they call no driver and wait for nobody.
// Threads: any. With no threads of its own, whoever finishes a task does it: the same calls, one thread.
#pragma once
#include <deque>
#include <vector>

#include "runtime/base/sync.h"

namespace weir::streams {

class copy_crew {
 public:
  struct task {
    void* dst = nullptr;
    void const* src = nullptr;
    std::size_t bytes = 0;
    bool past_caches = false;  // what is written is not read again by a processor
    enum class state : std::uint8_t { idle, queued, running, done } is = state::idle;  // under the crew's lock
  };

  explicit copy_crew(int threads) : wanted_(threads) {}  // Throws: bad_alloc
  ~copy_crew() { stop(); }
  int threads() const noexcept { return wanted_; }

  // Threads are made at the first of these. A task that was cancelled stays done. Requires: the task lives until it is done.
  // Without memory to queue it, it stays with whoever finishes it: a host function submits, too.
  void submit(task&) noexcept;
  void finish(task&);          // Blocks: until it is done; does it here if nobody has begun, submitted or not
  void cancel(task&) noexcept; // Ensures: done, and nothing touches its ranges any more; what has not begun never will
  void stop() noexcept;        // ends the threads; tasks may still be submitted, and are done by whoever finishes them

 private:
  void work();
  void run(task&, base::unique_lock&);

  int const wanted_;
  base::mutex mutex_;
  base::condition queued_, done_;
  std::deque<task*> queue_;
  std::vector<base::thread> threads_;
  bool started_ = false, ending_ = false;
};

}  // namespace weir::streams
