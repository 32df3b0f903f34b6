// A thread of a relay, and the system's threads that are kept to be the next one's:
// making one costs more than a whole run.
// Threads: as each says.
#pragma once
#include "runtime/base/os.h"
#include "simulator/threads/thread_scheduler.h"

namespace weir::base::detail {

// Where a thread sleeps until it has the baton. It never spins, nor yields:
// on a busy machine that gives the processor to strangers.
class baton_flag {
 public:
  void await() noexcept {
    while (std::atomic_ref<int>(word_).load(std::memory_order_acquire) == 0) os::sleep_while(word_, 0);
    std::atomic_ref<int>(word_).store(0, std::memory_order_relaxed);
  }
  // From the store on this may be gone with its thread.
  // The wake is of an address, and who else sleeps there looks again.
  void give() noexcept {
    int const& at = word_;
    std::atomic_ref<int>(word_).store(1, std::memory_order_release);
    os::wake_one(at);
  }

 private:
  int word_ = 0;  // 1: it has the baton
};

struct relay_thread final : sync_scheduler {
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

  relay* in = nullptr;
  int number = 0;
  std::string name{};
  std::shared_ptr<void> body{};
  void (*run)(void*) = nullptr;
  bool spawned = false;  // join() waits for it; else it is one of weir's own
  state is = state::ready;
  void const* what = nullptr;  // the lock, condition or thread it waits for
  std::function<std::string()> const* why = nullptr;  // it waits in a call of the machine
  std::int64_t until_ns = never;
  bool limit_passed = false, gave_up = false;
  bool ends = false;   // its values are being destroyed: nothing may be thrown at it
  bool firm = false;   // at a lock: nothing may be thrown at it there
  int quiet = 0;       // quiet locks it holds
  std::vector<mutex const*> not_retaken{};  // after a wait, when all unwind
  baton_flag own_go{};
  baton_flag* go = &own_go;  // a kept thread's is its own, and outlives this
};

// null: this thread is in no relay
inline relay_thread* this_relay_thread() noexcept { return static_cast<relay_thread*>(scheduled_thread::value); }

// A kept thread runs body(t) once t has the baton, then gives it to whom body returned.
// Threads: any. Throws: as std::thread.
void run_on_kept_thread(std::shared_ptr<relay_thread> t, std::shared_ptr<relay_thread> (*body)(relay_thread&) noexcept);

}  // namespace weir::base::detail
