// A thread of a relay, and system threads kept for reuse: making one costs more than a run.
// Threads: as noted at each function.
#pragma once
#include "runtime/base/os.h"
#include "simulator/threads/thread_scheduler.h"

namespace weir::base::detail {

// A thread sleeps here until it has the baton. It never spins: that takes the processor from other processes.
class baton_flag {
 public:
  void await() noexcept {
    while (std::atomic_ref<int>(word_).load(std::memory_order_acquire) == 0)
      os::sleep_while(word_, 0);
    std::atomic_ref<int>(word_).store(0, std::memory_order_relaxed);
  }
  // After the store, this object may be gone with its thread. The wake only uses the address; other sleepers
  // recheck.
  void give() noexcept {
    int const& at = word_;
    std::atomic_ref<int>(word_).store(1, std::memory_order_release);
    os::wake_one(at);
  }

 private:
  int word_ = 0;  // 1: it has the baton
};

struct scheduler_thread final : sync_scheduler {
  enum class state : std::uint8_t { ready, lock, condition, others, thread, asleep, ended };
  static constexpr std::int64_t never = -1;

  void point() noexcept override;
  void lock(mutex&) override;
  bool try_lock(mutex&) override;
  void unlock(mutex&) noexcept override;
  bool wait(condition&, unique_lock&, std::int64_t limit_ns) override;
  void notify(condition&, bool all) noexcept override;
  void stay(bool) noexcept override;
  std::int64_t now_ns() noexcept override;
  void sleep(std::int64_t ns) override;
  void yield() noexcept override;
  std::shared_ptr<sync_scheduler> start(std::shared_ptr<void> body, void (*run)(void*)) override;
  void join(sync_scheduler* by) override;

  thread_scheduler* in = nullptr;
  int number = 0;
  std::string name{};
  std::shared_ptr<void> body{};
  void (*run)(void*) = nullptr;
  bool spawned = false;  // join() waits for it; otherwise it is a thread of weir
  state is = state::ready;
  void const* what = nullptr;                         // what it waits for: a lock, condition or thread
  std::function<std::string()> const* why = nullptr;  // set while it waits in a call of the machine
  std::int64_t until_ns = never;
  bool limit_passed = false, gave_up = false;
  bool ends = false;                        // its values are being destroyed: nothing may be thrown in it
  bool firm = false;                        // nothing may be thrown at this lock
  int quiet = 0;                            // number of quiet locks it holds
  std::vector<mutex const*> not_retaken{};  // locks it left after a wait while all threads unwind
  baton_flag own_go{};
  baton_flag* go = &own_go;  // of a kept thread: outlives this
};

// null: not in a relay
inline scheduler_thread* this_scheduler_thread() noexcept {
  return static_cast<scheduler_thread*>(scheduled_thread::value);
}

// Runs body(t) on a kept thread once t has the baton, which then goes to the thread that body returns.
// Threads: any. Throws: as std::thread.
void run_on_kept_thread(std::shared_ptr<scheduler_thread> t,
                        std::shared_ptr<scheduler_thread> (*body)(scheduler_thread&) noexcept);

}  // namespace weir::base::detail
