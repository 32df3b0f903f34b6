// Threads that copy bytes in host memory. They make no driver call and wait for nothing else.
// Threads: any. Without threads of its own, the thread that calls finish() copies.
#pragma once
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/sync.h"
#include "streams/copy/host_copy.h"

namespace weir::streams {

class copy_workers {
 public:
  // Threads share a task in pieces, in order, so that the first and the last task finish early.
  struct task {
    void* dst = nullptr;
    void const* src = nullptr;
    std::size_t bytes = 0;
    stores by = stores::plain;
    std::size_t grain = std::numeric_limits<std::size_t>::max();  // size of a piece, not 0
    // Under the workers' lock. Idle, queued: pieces are left. Running: all are taken, by `hands` threads.
    enum class state : std::uint8_t { idle, queued, running, done } is = state::idle;
    std::size_t taken = 0;  // bytes
    int hands = 0;
  };
  struct tuning {
    int threads;
    bool helps = false;        // a thread that waits for a task copies queued ones meanwhile
    std::int64_t spin_ns = 0;  // how long a thread spins before it sleeps
  };

  // near: the processors of its threads, if the system allows it; empty: any. Throws: bad_alloc
  explicit copy_workers(int threads, std::vector<int> near = {}) : near_(std::move(near)), how_{threads} {}
  ~copy_workers() { stop(); }
  int threads() const noexcept {
    base::lock_guard const lock(mutex_);
    return how_.threads;
  }
  void work_by(tuning) noexcept;  // from the next submit on

  // The first submit starts the threads. A cancelled task stays done. Without memory, finish() runs the task:
  // host functions submit too. Requires: the task lives until it is done.
  void submit(task&) noexcept;
  void finish(task&);  // Blocks: until it is done; copies the pieces that no thread has taken, submitted or not
  void cancel(task&) noexcept;  // Ensures: done, and its ranges are no longer accessed; pieces not begun never run
  void stop() noexcept;         // ends the threads; later tasks are done by finish()

 private:
  void work(int number);
  void take_grain(task&, base::unique_lock&);
  void spin_while(base::atomic<std::uint64_t> const& word, std::uint64_t value, base::unique_lock&);

  std::vector<int> const near_;
  mutable base::mutex mutex_;
  tuning how_;
  base::condition queued_, done_;
  std::deque<task*> queue_;
  std::vector<base::thread> threads_;
  int asked_ = 0;  // threads requested; a refused thread is not requested again
  bool ending_ = false;
  base::atomic<std::uint64_t> submitted_{0}, finished_{0};  // tasks; written under the lock, read while spinning
};

// The copy workers of each device: common ones, or some per NUMA node if the host has several. Threads: any.
class node_workers {
 public:
  explicit node_workers(int threads) : common_(std::make_shared<copy_workers>(threads)), threads_(threads) {}

  // The node's own workers, if the node has enough known processors for its threads and is not the whole host;
  // else the common one. Shared: fetches may still be queued at teardown.
  std::shared_ptr<copy_workers> of(int node) noexcept;
  void work_by(copy_workers::tuning) noexcept;  // of all nodes
  void stop() noexcept;

 private:
  std::shared_ptr<copy_workers> const common_;
  int const threads_;
  struct known {
    std::map<int, std::shared_ptr<copy_workers>> near;  // includes the common one
    copy_workers::tuning how{.threads = 0};             // threads 0: never set
    bool stopped = false;
  };
  base::guarded<known> known_;
};

}  // namespace weir::streams
