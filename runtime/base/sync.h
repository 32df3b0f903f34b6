// Every lock, atomic, thread, thread-local value and clock of weir, so that one place can schedule them.
// Threads: as each type says. CI refuses <atomic>, <mutex>, <thread> and clocks anywhere else in the library.
// A thread scheduler (thread_scheduler.h) runs its threads one at a time. For them, every call here that
// another thread could notice is a switch point. Other threads pay one branch on a global. Atomics are switch
// points in builds with WEIR_SCHEDULE_ATOMICS.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace weir::base {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

// How long a wait may last. A span beyond 292 years counts as the longest one, a span below 0 as none.
class time_limit {
 public:
  constexpr time_limit() noexcept = default;  // no wait
  template <class Rep, class Period>
  constexpr time_limit(std::chrono::duration<Rep, Period> span) noexcept : ns_(in_ns(span)) {}
  constexpr std::int64_t ns() const noexcept { return ns_; }
  constexpr std::int64_t after(std::int64_t now) const noexcept {
    return now > 0 && ns_ > most - now ? most : now + ns_;
  }

 private:
  static constexpr std::int64_t most = std::chrono::nanoseconds::max().count();
  template <class Span>
  static constexpr std::int64_t in_ns(Span span) noexcept {
    if (span <= Span::zero())
      return 0;
    return span > std::chrono::duration_cast<Span>(std::chrono::nanoseconds::max())
               ? most
               : std::chrono::duration_cast<std::chrono::nanoseconds>(span).count();
  }
  std::int64_t ns_ = 0;
};

class mutex;
class condition;
class sync_scheduler;
using unique_lock = std::unique_lock<mutex>;

namespace detail {
inline constinit std::atomic<int> relays{0};  // schedulers that have threads now
inline bool is_scheduled() noexcept {
  return relays.load(std::memory_order_relaxed) != 0;
}
// Calls of scheduled threads go to their sync_scheduler; any other thread makes the plain call.
void point() noexcept;
void lock(mutex&);
bool try_lock(mutex&);
void unlock(mutex&) noexcept;
bool wait(condition&, unique_lock&, std::int64_t limit_ns);  // false: timed out
void notify(condition&, bool all) noexcept;
void keep_baton(bool) noexcept;
bool in_scheduler() noexcept;
std::shared_ptr<sync_scheduler> start_scheduled(std::shared_ptr<void> body, void (*run)(void*));
void join_scheduled(std::shared_ptr<sync_scheduler>);

inline void atomic_point() noexcept {
#ifdef WEIR_SCHEDULE_ATOMICS
  if (is_scheduled()) [[unlikely]]
    point();
#endif
}
}  // namespace detail

// A switch point without a lock, wait or notification.
inline void switch_point() noexcept {
  if (detail::is_scheduled()) [[unlikely]]
    detail::point();
}

// A scheduler runs this thread: its decisions must not depend on what differs between runs, like addresses.
inline bool order_is_chosen() noexcept {
  return detail::is_scheduled() && detail::in_scheduler();
}

// Whether an observer is attached. No switch point, because the flag decides only what is reported.
class flag {
 public:
  bool on() const noexcept { return on_.load(memory_order_relaxed); }
  void set(bool on) noexcept { on_.store(on, memory_order_release); }

 private:
  std::atomic<bool> on_{false};
};

// While one exists, the scheduler does not switch away from this thread. Needed around initializers of
// statics: a scheduled thread that waits on the language's own lock would never run again.
class no_switch {
 public:
  no_switch() noexcept {
    if (detail::is_scheduled()) [[unlikely]]
      detail::keep_baton(true);
  }
  ~no_switch() {
    if (detail::is_scheduled()) [[unlikely]]
      detail::keep_baton(false);
  }
  no_switch(no_switch const&) = delete;
};

template <class T>
class atomic {
 public:
  constexpr atomic() noexcept = default;
  constexpr atomic(T value) noexcept : value_(value) {}
  atomic(atomic const&) = delete;
  atomic& operator=(atomic const&) = delete;
  T load(std::memory_order order = memory_order_seq_cst) const noexcept { return here().load(order); }
  T seen() const noexcept { return value_.load(std::memory_order_relaxed); }  // for rules (rule.h): no switch point
  void store(T value, std::memory_order order = memory_order_seq_cst) noexcept { here().store(value, order); }
  T exchange(T value, std::memory_order order = memory_order_seq_cst) noexcept { return here().exchange(value, order); }
  bool compare_exchange(T& expected, T desired, std::memory_order order = memory_order_seq_cst) noexcept {
    return here().compare_exchange_strong(expected, desired, order);
  }
  T fetch_add(T by, std::memory_order order = memory_order_seq_cst) noexcept { return here().fetch_add(by, order); }
  T fetch_sub(T by, std::memory_order order = memory_order_seq_cst) noexcept { return here().fetch_sub(by, order); }
  // Ensures: the value is at least `floor` afterwards.
  void raise(T floor, std::memory_order order = memory_order_release) noexcept {
    T seen = here().load(memory_order_relaxed);
    while (seen < floor && !here().compare_exchange_weak(seen, floor, order, memory_order_relaxed)) {}
  }

 private:
  std::atomic<T>& here() noexcept {
    detail::atomic_point();
    return value_;
  }
  std::atomic<T> const& here() const noexcept {
    detail::atomic_point();
    return value_;
  }
  std::atomic<T> value_{};
};

// A number with one writer at a time and any readers. It orders nothing and costs no more than a plain one.
template <class T>
class single_writer {
 public:
  constexpr single_writer() noexcept = default;
  constexpr single_writer(T value) noexcept : value_(value) {}
  T get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void set(T value) noexcept { value_.store(value, std::memory_order_relaxed); }
  void add(T by) noexcept { set(static_cast<T>(get() + by)); }
  void raise(T floor) noexcept {
    if (get() < floor)
      set(floor);
  }

 private:
  std::atomic<T> value_{};
};

// What its owner is in: an odd number while in a call, and another one for each call. Others look at it after
// process_wide_fence(). It decides only whom they wait for, and is no switch point.
class call_count {
 public:
  // fences: the process has no process_wide_fence()
  void begin(bool fences) noexcept {
    n_.store(n_.load(memory_order_relaxed) + 1, memory_order_relaxed);
    if (fences) [[unlikely]]
      std::atomic_thread_fence(memory_order_seq_cst);
    std::atomic_signal_fence(memory_order_seq_cst);
  }
  void end() noexcept { n_.store(n_.load(memory_order_relaxed) + 1, memory_order_release); }
  std::uint64_t get() const noexcept { return n_.load(memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> n_{0};
};

// For memory that cannot hold an atomic<T>: shared with a device, or zero and untouched at first.
template <class T>
void store_release(T& word, T value) noexcept {
  std::atomic_ref<T>(word).store(value, memory_order_release);
}
template <class T>
T load_acquire(T& word) noexcept {
  return std::atomic_ref<T>(word).load(memory_order_acquire);
}

// For a mutex of the simulated machine, or of a driver in front of it. The scheduler does not switch away
// from its holder, so that a driver call and what is recorded about it are one step.
struct quiet_t {};
inline constexpr quiet_t quiet;

// A number that one thread, its owner, changes often together with data that belongs to it. Other threads
// seldom stop it. The owner pays one plain store more than the change itself; a thread that stops it pays for
// a fence in every thread of the process.
//   owner:  begin(); read a sign, any atomic; if not set, change the data and end(new value), else end(old)
//   others: set the sign, process_wide_fence(), wait_for_end()
// Invariant: after that, the owner changes nothing until it clears the sign itself, under a lock that it
// shares with the others. It may only write the old number once more, if it read it before begin(). So no
// other thread may write the number.
class bias_word {
 public:
  static constexpr std::uint64_t begun = 0x80;  // no bit of its values
  constexpr bias_word() noexcept = default;
  [[gnu::always_inline]] std::uint64_t begin() noexcept {
    std::uint64_t const value = word_.load(memory_order_relaxed);
    word_.store(value | begun, memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return value;
  }
  [[gnu::always_inline]] void end(std::uint64_t value) noexcept { word_.store(value, memory_order_release); }
  std::uint64_t get() const noexcept { return word_.load(memory_order_acquire) & ~begun; }  // Threads: any
  void wait_for_end() const noexcept;  // Blocks: until the owner is not between begin() and end()

 private:
  atomic<std::uint64_t> word_{0};
};
bool has_process_wide_fence() noexcept;  // false: bias_word must not be used
void process_wide_fence() noexcept;      // later reads of other threads see every earlier write of this one

// One pointer per thread for each Tag; `initial` in a new thread. In a program the linker makes it a single
// load. No TLS model is requested, because the static ones may not fit in a library loaded at run time.
template <class Tag, auto* initial = static_cast<void*>(nullptr)>
struct thread_pointer {
  static inline constinit thread_local std::remove_pointer_t<decltype(initial)>* value = initial;
};

class mutex {
 public:
  constexpr mutex() noexcept = default;
  explicit constexpr mutex(quiet_t) noexcept : quiet_(true) {}
  void lock() {
    if (detail::is_scheduled()) [[unlikely]]
      return detail::lock(*this);
    mutex_.lock();
  }
  bool try_lock() {
    if (detail::is_scheduled()) [[unlikely]]
      return detail::try_lock(*this);
    return mutex_.try_lock();
  }
  void unlock() {
    if (detail::is_scheduled()) [[unlikely]]
      return detail::unlock(*this);
    mutex_.unlock();
  }

 private:
  friend class condition;
  friend class thread_scheduler;
  friend void detail::lock(mutex&);
  friend bool detail::try_lock(mutex&);
  friend void detail::unlock(mutex&) noexcept;
  std::mutex mutex_;
  bool const quiet_ = false;
};

using lock_guard = std::lock_guard<mutex>;

// A mutex that one thread, its owner, enters by two plain stores to its own word instead of two locked
// instructions. The owner is a thread that locked it many times in a row. If another thread locks it,
// ownership ends and that thread pays for a fence in every thread of the process.
// Invariant: mutual exclusion. A thread enters by its word only while `owner_` names that word. A thread that
// clears `owner_` holds the mutex, and waits until the word says that its thread is outside.
class biased_mutex {
 public:
  // The owner's path. False: the calling thread is not the owner, and nothing is held.
  [[gnu::always_inline]] bool enter(bias_word& mine) noexcept {
    if (owner_.load(memory_order_relaxed) != &mine)
      return false;
    mine.begin();
    if (owner_.load(memory_order_acquire) == &mine) [[likely]]
      return true;
    mine.end(0);
    return false;
  }
  [[gnu::always_inline]] static void leave(bias_word& mine) noexcept { mine.end(0); }

  void lock();
  void unlock() { mutex_.unlock(); }
  // Makes the calling thread the owner if it has locked often enough.
  // Requires: locked by lock(); `mine` outlives this, or its bias is revoked before
  void bias_to(bias_word& mine) noexcept {
    if (in_a_row_ >= patience_ && !owner_.load(memory_order_relaxed))
      owner_.store(&mine, memory_order_release);
  }
  void revoke_bias(bias_word const& gone) noexcept {  // Requires: locked by lock()
    if (owner_.load(memory_order_relaxed) == &gone)
      owner_.store(nullptr, memory_order_relaxed);
  }
  // Requires: locked by lock(). An owner is then the calling thread; after revoke_bias() it uses lock() again.
  bool is_owned() const noexcept { return owner_.load(memory_order_relaxed) != nullptr; }
  void revoke_bias() noexcept { owner_.store(nullptr, memory_order_relaxed); }

 private:
  static constexpr std::uint32_t least_patience = 4, most_patience = 1024;
  atomic<bias_word*> owner_{nullptr};  // written under mutex_
  mutex mutex_;
  std::uint64_t last_ = 0;      // under mutex_, like the next two: the last thread to lock
  std::uint32_t in_a_row_ = 0;  // locks of that thread since another one locked
  // locks in a row before a thread becomes the owner; doubled each time another thread ends an ownership
  std::uint32_t patience_ = least_patience;
};
using biased_lock = std::lock_guard<biased_mutex>;

class condition {
 public:
  void wait(unique_lock& lock) {
    if (detail::is_scheduled()) [[unlikely]]
      return void(detail::wait(*this, lock, no_limit));
    wait_plainly(lock);
  }
  template <class Done>
  void wait(unique_lock& lock, Done done) {
    while (!done())
      wait(lock);
  }
  // Returns: the last result of done().
  template <class Done>
  bool wait_for(unique_lock& lock, time_limit limit, Done done);
  void notify_one() noexcept {
    condition_.notify_one();
    if (detail::is_scheduled()) [[unlikely]]
      detail::notify(*this, false);
  }
  void notify_all() noexcept {
    condition_.notify_all();
    if (detail::is_scheduled()) [[unlikely]]
      detail::notify(*this, true);
  }

 private:
  friend class thread_scheduler;
  friend bool detail::wait(condition&, unique_lock&, std::int64_t);
  static constexpr std::int64_t no_limit = -1;
  void wait_plainly(unique_lock& lock) {
    std::unique_lock<std::mutex> inner(lock.mutex()->mutex_, std::adopt_lock);
    condition_.wait(inner);
    inner.release();
  }
  bool wait_until(unique_lock& lock, std::chrono::steady_clock::time_point end) {  // false: timed out
    std::unique_lock<std::mutex> inner(lock.mutex()->mutex_, std::adopt_lock);
    bool const in_time = condition_.wait_until(inner, end) == std::cv_status::no_timeout;
    inner.release();
    return in_time;
  }
  std::condition_variable condition_;
};

// A value that can be reached only with its lock held.
template <class T>
class guarded {
 public:
  class access {
   public:
    T* operator->() const noexcept { return value_; }
    T& operator*() const noexcept { return *value_; }
    unique_lock& lock() noexcept { return lock_; }  // for condition::wait

   private:
    friend class guarded;
    access(mutex& m, T& value) : lock_(m), value_(&value) {}
    unique_lock lock_;
    T* value_;
  };
  guarded() = default;
  template <class... Args>
  explicit guarded(std::in_place_t, Args&&... args) : value_(std::forward<Args>(args)...) {}
  access lock() const { return access(mutex_, value_); }

 private:
  mutable mutex mutex_;
  mutable T value_{};
};

namespace detail {
void may_make_thread();  // Throws: std::system_error, if os::refused() refuses a thread
}

// A thread made by a scheduled thread belongs to the same scheduler.
class thread {
 public:
  thread() noexcept = default;
  template <class F>
  explicit thread(F&& body) {
    detail::may_make_thread();
    if (detail::is_scheduled() && detail::in_scheduler()) [[unlikely]]
      scheduled_ = detail::start_scheduled(std::make_shared<std::decay_t<F>>(std::forward<F>(body)),
                                           [](void* b) { (*static_cast<std::decay_t<F>*>(b))(); });
    else
      thread_ = std::thread(std::forward<F>(body));
  }
  thread(thread&&) noexcept = default;
  thread& operator=(thread&&) noexcept = default;
  bool joinable() const noexcept { return scheduled_ || thread_.joinable(); }
  void join() {
    if (scheduled_)
      return detail::join_scheduled(std::exchange(scheduled_, nullptr));
    thread_.join();
  }
  void detach() { thread_.detach(); }  // Requires: no scheduled thread made it

 private:
  std::thread thread_;
  std::shared_ptr<sync_scheduler> scheduled_;
};

// One T per thread, made at first use and destroyed with the thread. At most thread_slots in a process.
inline constexpr int thread_slots = 16;
namespace detail {
struct slot_value {
  void* value = nullptr;
  void (*destroy)(void*) noexcept = nullptr;
};
std::array<slot_value, thread_slots>& this_thread_slots() noexcept;
// destroys this thread's values as at its end: for a thread that is kept and gets another body
void end_thread_values() noexcept;
void keep_late_value() noexcept;  // if the other values were already destroyed, a new one still is at the thread's end
int new_thread_slot() noexcept;
}  // namespace detail

template <class T>
class per_thread {
 public:
  per_thread() noexcept : slot_(detail::new_thread_slot()) {}
  T& get() {
    auto& at = detail::this_thread_slots()[static_cast<std::size_t>(slot_)];
    if (!at.value) {
      at.value = new T();
      at.destroy = [](void* v) noexcept { delete static_cast<T*>(v); };
      detail::keep_late_value();
    }
    return *static_cast<T*>(at.value);
  }

 private:
  int slot_;
};

std::int64_t now_ns() noexcept;       // monotonic, from an arbitrary start. In a scheduled thread: its machine's
std::int64_t calendar_ns() noexcept;  // since 1970 by the host's clock: for reports and files, never for order
// the processor's constant-rate counter, at half the cost of now_ns(). In a scheduled thread: now_ns()
std::uint64_t ticks() noexcept;
void sleep_ns(std::int64_t) noexcept;
void yield_thread() noexcept;
std::uint64_t this_thread_id() noexcept;  // counts up from 1 in order of first use; never reused
int hardware_threads() noexcept;

template <class Done>
bool condition::wait_for(unique_lock& lock, time_limit limit, Done done) {
  if (detail::is_scheduled() && detail::in_scheduler()) [[unlikely]] {
    std::int64_t const end = limit.after(now_ns());
    while (!done()) {
      std::int64_t const left = end - now_ns();
      if (left <= 0 || !detail::wait(*this, lock, left))
        return done();
    }
    return true;
  }
  using clock = std::chrono::steady_clock;
  clock::time_point const end(
      std::chrono::nanoseconds(limit.after(std::chrono::nanoseconds(clock::now().time_since_epoch()).count())));
  while (!done())
    if (!wait_until(lock, end))
      return done();
  return true;
}

}  // namespace weir::base
