// A relay is a group of host threads of which one runs at a time: whoever has the baton. It is handed on at
// switch points (every lock, wait, notification, sleep and driver call), so that each order of those points
// can be chosen, and chosen again.
// Threads: real ones; all that is called here is called with the baton,
// by a thread of the relay, where not said otherwise.
//
// Invariant: exactly one thread of an active relay is not waiting for its `go`. A thread is in ready_ if and
// only if nothing keeps it from going on. While a relay is active no lock of sync.h blocks its threads in the
// system: who cannot have it is not ready until it is given back.
//
// A run that is over is unwound: who waits for a condition, a time or a thread's end is thrown `abandoned`,
// and who unwinds gives its locks back to those that wait for them. Only where none comes back so is it
// thrown to who stands at one: locks are taken in functions that must not throw, too.
// Nothing is thrown at a thread that unwinds or ends.
#pragma once
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/sync_scheduler.h"

namespace weir::base {

namespace detail {
struct relay_thread;
}

// Whoever decides: a machine with a seed. Numbers of threads are ascending and begin with 0, who entered.
class relay_choices {
 public:
  virtual ~relay_choices() = default;
  // Thread `now` is at a switch point and could go on. Returns:
  // one of `can`, which `now` is among, and another at least.
  virtual int next(int now, std::span<int const> can) noexcept = 0;
  // Thread `now` cannot go on, or asks others to. Returns: one of `can`.
  virtual int instead(int now, std::span<int const> can) noexcept = 0;
  virtual void yields(int /*now*/) noexcept {}                  // it asks that others go on: instead() comes next
  virtual std::size_t woken(std::size_t of) noexcept = 0;      // which of those that wait a notification wakes
  virtual bool move() noexcept = 0;  // no thread can go on: moves something else. false: nothing can
  virtual std::int64_t now_ns() noexcept = 0;
  virtual void jump(std::int64_t to_ns) noexcept = 0;          // time goes on: nothing else does
  virtual void stuck(std::string const& why) noexcept = 0;     // nothing can move ever again
};

// Thrown where a thread waits for what cannot come, so that it unwinds.
// No std::exception: nobody takes it for an error.
struct abandoned {};

class relay {
 public:
  // of the first thread's membership: join() ends it, or leave()
  enum class life : std::uint8_t { while_needed, until_left };

  explicit relay(relay_choices& c) noexcept : choices_(c) {}
  ~relay() { end(); }
  relay(relay const&) = delete;

  static relay* here() noexcept;                        // this thread's. Null: none
  static int number() noexcept;                         // this thread's, in its relay
  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }  // Threads: any
  bool has_this_thread() const noexcept { return here() == this; }                  // Threads: any

  // The calling thread becomes the first. Requires: not active, and the caller in no relay.
  void enter(std::string name, life);
  // Requires: the caller is the only thread left.
  void leave() noexcept;
  // All others unwind, then the caller leaves, if it is in here.
  void end() noexcept;

  void spawn(std::string name, std::function<void()> body);
  // Blocks: until all that was spawned has ended. Throws: what the first of them to throw threw.
  // Returns: why not all could come to their end by themselves:
  // who waits for whom, or that there is no end. Empty: they could.
  std::string join();
  bool over() const noexcept { return over_; }          // all threads are to end now

  void point() noexcept;                                // a switch point
  void yield() noexcept;
  void sleep(std::int64_t ns);
  std::int64_t now_ns() noexcept { return choices_.now_ns(); }
  std::uint64_t points() const noexcept { return points_; }  // passed so far

  // For a machine whose caller waits for what another thread may yet give: until c is notified.
  // Returns: false when nothing can move any more, and then never again before something does.
  // `why` must live as long.
  bool wait_for_others(condition& c, unique_lock&, std::function<std::string()> const& why);

  static constexpr std::uint64_t endless = 5'000'000;   // switch points: a run that has more is over
  // switch points after which a run that is over throws at free locks, too
  static constexpr std::uint64_t patience = 1'000'000;

 private:
  friend struct detail::relay_thread;
  using member = detail::relay_thread;
  using member_ptr = std::shared_ptr<member>;

  member_ptr start(std::string name, std::shared_ptr<void> body, void (*run)(void*));
  static member_ptr body_of(member&) noexcept;          // what a kept thread does for a relay. Returns: who goes on
  void lock(member&, mutex&);
  bool try_lock(member&, mutex&);
  void unlock(member&, mutex&) noexcept;
  bool wait(member&, condition&, unique_lock&, std::int64_t limit_ns);
  void notify(condition&, bool all) noexcept;
  void join(member&, member& other);
  void take(member&, mutex&);                           // Requires: just locked
  bool give_back(member&, mutex&) noexcept;             // and those that want it are ready
  void retake(member&, mutex&);
  void lock_from_outside(mutex&);
  int holder(mutex const&) const noexcept;              // -1: no thread of this relay

  void block(member&);                     // until it is ready. Requires: it says what for
  int choose_other(int now);               // Returns: who goes on, when something can
  void make_ready(member&) noexcept;
  void not_ready(member&) noexcept;
  void wake_sleepers() noexcept;
  bool jump_to_next_limit() noexcept;
  void nothing_moves();
  void give_up() noexcept;                 // all that wait are made ready, to unwind
  bool wake_at_locks(bool firm) noexcept;  // for good, one of those: a lock that never comes. false: there is none
  void throw_if_over(member const&) const;
  void hand_to(int) noexcept;              // and returns when the baton is back
  std::string circle() const;
  std::string state_of(member const&) const;
  std::string name_of(void const* lock_or_condition) const;

  relay_choices& choices_;
  std::atomic<bool> active_{false};
  life life_ = life::while_needed;
  std::vector<member_ptr> threads_;                     // by number
  std::vector<int> ready_;                              // ascending
  struct held {
    mutex const* what;
    int by;
  };
  std::vector<held> held_;
  mutable std::vector<void const*> named_;              // locks and conditions, in the order they were first spoken of
  std::uint64_t points_ = 0;
  std::uint64_t over_at_ = 0;                           // points passed when it was over
  std::size_t alive_ = 0;                               // threads that have not ended
  std::size_t limits_ = 0;                              // threads that wait with a limit
  bool over_ = false, choosing_ = false;
  std::string why_over_;
  std::exception_ptr first_error_;
};

}  // namespace weir::base
