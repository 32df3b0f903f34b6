// A relay is a group of host threads of which one, the thread with the baton, runs at a time. The baton moves
// at switch points (every lock, wait, notification, sleep and driver call), so that each order of those
// points can be repeated.
// Threads: real ones. Unless noted otherwise, the caller is a thread of the relay and has the baton.
//
// Invariant: exactly one thread of an active relay is not waiting for its `go`. ready_ has exactly the
// threads that nothing blocks. No lock of sync.h blocks its threads in the system: a thread without the lock
// is not ready.
//
// A run that is over unwinds: a thread that waits for a condition, a time or another thread's end gets
// `abandoned` thrown, and releases its locks to the waiting threads. A thread at a lock gets it only if that
// releases no lock: functions that must not throw take locks too. Nothing is thrown in a thread that unwinds
// or ends.
#pragma once
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/sync_scheduler.h"

namespace weir::base {

namespace detail {
struct scheduler_thread;
}

// The decisions of a relay, made by a seeded machine. Thread numbers ascend from 0, the thread that entered.
class schedule_choices {
 public:
  virtual ~schedule_choices() = default;
  // Thread `now` is at a switch point and can continue. Returns: one of `can`: `now` or another.
  virtual int next(int now, std::span<int const> can) noexcept = 0;
  // Thread `now` cannot continue, or yields. Returns: one of `can`.
  virtual int instead(int now, std::span<int const> can) noexcept = 0;
  virtual void yields(int /*now*/) noexcept {}             // it yields: instead() comes next
  virtual std::size_t woken(std::size_t of) noexcept = 0;  // which of `of` waiting threads a notification wakes
  virtual bool move() noexcept = 0;  // no thread can continue: moves a stream. false: none can move
  virtual std::int64_t now_ns() noexcept = 0;
  virtual void jump(std::int64_t to_ns) noexcept = 0;       // only time can pass
  virtual void stuck(std::string const& why) noexcept = 0;  // nothing can ever move again
};

// Thrown to unwind a thread whose wait cannot end. Not a std::exception: no handler takes it for an error.
struct abandoned {};

class thread_scheduler {
 public:
  // when the first thread's membership ends: at join(), or at leave()
  enum class life : std::uint8_t { while_needed, until_left };

  explicit thread_scheduler(schedule_choices& c) noexcept : choices_(c) {}
  ~thread_scheduler() { end(); }
  thread_scheduler(thread_scheduler const&) = delete;

  static thread_scheduler* here() noexcept;                                         // of this thread. Null: none
  static int number() noexcept;                                                     // of this thread, in its relay
  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }  // Threads: any
  bool has_this_thread() const noexcept { return here() == this; }                  // Threads: any

  // The calling thread becomes the first. Requires: not active, and the caller in no relay.
  void enter(std::string name, life);
  // Requires: no other thread is left.
  void leave() noexcept;
  // All other threads unwind, then the caller leaves, if it is a member.
  void end() noexcept;

  void spawn(std::string name, std::function<void()> body);
  // Blocks: until all spawned threads have ended. Throws: the first exception of a spawned thread.
  // Returns: empty, or why some could not end by themselves: the circle of waits, or an endless run.
  std::string join();
  bool over() const noexcept { return over_; }  // all threads are to end

  void point() noexcept;  // a switch point
  void yield() noexcept;
  void sleep(std::int64_t ns);
  std::int64_t now_ns() noexcept { return choices_.now_ns(); }
  std::uint64_t points() const noexcept { return points_; }  // number of switch points passed

  // For a machine whose caller waits for another thread's call: waits until c is notified.
  // Returns: false if nothing can move any more. `why` must outlive the call.
  bool wait_for_others(condition& c, unique_lock&, std::function<std::string()> const& why);

  static constexpr std::uint64_t endless = 5'000'000;  // number of switch points after which a run is over
  // further switch points until a run that is over also throws at free locks
  static constexpr std::uint64_t patience = 1'000'000;

 private:
  friend struct detail::scheduler_thread;
  using member = detail::scheduler_thread;
  using member_ptr = std::shared_ptr<member>;

  member_ptr start(std::string name, std::shared_ptr<void> body, void (*run)(void*));
  static member_ptr body_of(member&) noexcept;  // the body on a kept thread. Returns: the thread that continues
  void lock(member&, mutex&);
  bool try_lock(member&, mutex&);
  void unlock(member&, mutex&) noexcept;
  bool wait(member&, condition&, unique_lock&, std::int64_t limit_ns);
  void notify(condition&, bool all) noexcept;
  void join(member&, member& other);
  void take(member&, mutex&);                // Requires: just locked
  bool give_back(member&, mutex&) noexcept;  // makes the waiting threads ready
  void retake(member&, mutex&);
  void lock_from_outside(mutex&);
  int holder(mutex const&) const noexcept;  // -1: no thread of this relay

  void block(member&);        // until it is ready. Requires: is and what are set
  int choose_other(int now);  // Returns: the thread that continues, once something can
  void make_ready(member&) noexcept;
  void not_ready(member&) noexcept;
  void wake_sleepers() noexcept;
  bool jump_to_next_limit() noexcept;
  void nothing_moves();
  void give_up() noexcept;                 // makes all waiting threads ready, to unwind
  bool wake_at_locks(bool firm) noexcept;  // throws in one thread at a lock. false: there is none
  void throw_if_over(member const&) const;
  void hand_to(int) noexcept;  // returns when the baton is back
  std::string circle() const;
  std::string state_of(member const&) const;
  std::string name_of(void const* lock_or_condition) const;

  schedule_choices& choices_;
  std::atomic<bool> active_{false};
  life life_ = life::while_needed;
  std::vector<member_ptr> threads_;  // by number
  std::vector<int> ready_;           // ascending
  struct held {
    mutex const* what;
    int by;
  };
  std::vector<held> held_;
  mutable std::vector<void const*> named_;  // locks and conditions, by first mention in a text
  std::uint64_t points_ = 0;
  std::uint64_t over_at_ = 0;  // value of points_ at the end of the run
  std::size_t alive_ = 0;      // threads that have not ended
  std::size_t limits_ = 0;     // threads that wait with a limit
  bool over_ = false, choosing_ = false;
  std::string why_over_;
  std::exception_ptr first_error_;
};

}  // namespace weir::base
