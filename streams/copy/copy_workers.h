// A few threads that copy bytes between places of the host and do nothing else:
// they call no driver and wait for nobody.
// Threads: any. With no threads of its own, whoever finishes a task does it: the same calls, one thread.
#pragma once
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/base/sync.h"
#include "streams/copy/host_copy.h"

namespace weir::streams {

class copy_crew {
 public:
  // Threads share a task a piece at a time, from its first byte on:
  // the first task of many is soon done, and so is the last.
  struct task {
    void* dst = nullptr;
    void const* src = nullptr;
    std::size_t bytes = 0;
    stores by = stores::plain;
    std::size_t piece = std::numeric_limits<std::size_t>::max();  // bytes that one thread takes at a time, not 0
    // Under the crew's lock. Idle and queued: some of it nobody has taken yet. Running:
    // all is taken, `hands` threads are in it.
    enum class state : std::uint8_t { idle, queued, running, done } is = state::idle;
    std::size_t taken = 0;  // bytes
    int hands = 0;
  };
  struct manner {
    int threads;
    bool helps = false;         // who waits for a task that others have in hand copies of what is queued meanwhile
    std::int64_t spin_ns = 0;   // before a thread sleeps
  };

  // near: the processors that its threads stay on, where the system lets them; empty:
  // where it likes. Throws: bad_alloc
  explicit copy_crew(int threads, std::vector<int> near = {}) : near_(std::move(near)), how_{threads} {}
  ~copy_crew() { stop(); }
  int threads() const noexcept {
    base::lock_guard const lock(mutex_);
    return how_.threads;
  }
  void work_by(manner) noexcept;  // from the next submit on

  // Threads are made at the first of these. A task that was cancelled stays done. Requires: the task lives
  // until it is done. Without memory to queue it, it stays with whoever finishes it:
  // a host function submits, too.
  void submit(task&) noexcept;
  void finish(task&);          // Blocks: until it is done; does here what nobody has begun, submitted or not
  void cancel(task&) noexcept; // Ensures: done, and nothing touches its ranges any more; what has not begun never will
  void stop() noexcept;        // ends the threads; tasks may still be submitted, and are done by whoever finishes them

 private:
  void work(int number);
  void take_piece(task&, base::unique_lock&);
  void spin_while(base::atomic<std::uint64_t> const& word, std::uint64_t value, base::unique_lock&);

  std::vector<int> const near_;
  mutable base::mutex mutex_;
  manner how_;
  base::condition queued_, done_;
  std::deque<task*> queue_;
  std::vector<base::thread> threads_;
  int asked_ = 0;  // threads; no system is asked again for what it refused
  bool ending_ = false;
  base::atomic<std::uint64_t> submitted_{0}, finished_{0};  // tasks; changed under the lock, seen by who spins
};

}  // namespace weir::streams
