// Every lock, atomic, thread, thread-local value and clock weir uses comes from here, so that one place can schedule them.
// Threads: as each type says. CI refuses <atomic>, <mutex>, <thread> and clocks anywhere else in the library.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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

template <class T>
class atomic {
 public:
  constexpr atomic() noexcept = default;
  constexpr atomic(T value) noexcept : value_(value) {}
  atomic(atomic const&) = delete;
  atomic& operator=(atomic const&) = delete;
  T load(std::memory_order order = memory_order_seq_cst) const noexcept { return value_.load(order); }
  void store(T value, std::memory_order order = memory_order_seq_cst) noexcept { value_.store(value, order); }
  T exchange(T value, std::memory_order order = memory_order_seq_cst) noexcept { return value_.exchange(value, order); }
  bool compare_exchange(T& expected, T desired, std::memory_order order = memory_order_seq_cst) noexcept {
    return value_.compare_exchange_strong(expected, desired, order);
  }
  T fetch_add(T by, std::memory_order order = memory_order_seq_cst) noexcept { return value_.fetch_add(by, order); }
  T fetch_sub(T by, std::memory_order order = memory_order_seq_cst) noexcept { return value_.fetch_sub(by, order); }
  // Ensures: the value is at least `floor` afterwards.
  void raise(T floor, std::memory_order order = memory_order_release) noexcept {
    T seen = value_.load(memory_order_relaxed);
    while (seen < floor && !value_.compare_exchange_weak(seen, floor, order, memory_order_relaxed)) {}
  }

 private:
  std::atomic<T> value_{};
};

// A number with one writer at a time, readable by anybody: no order, no cost beyond a plain one's.
template <class T>
class single_writer {
 public:
  constexpr single_writer() noexcept = default;
  constexpr single_writer(T value) noexcept : value_(value) {}
  T get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void set(T value) noexcept { value_.store(value, std::memory_order_relaxed); }
  void add(T by) noexcept { set(static_cast<T>(get() + by)); }
  void raise(T floor) noexcept {
    if (get() < floor) set(floor);
  }

 private:
  std::atomic<T> value_{};
};

// For a word that lies in memory shared with a device, where no atomic<T> can live.
template <class T>
void store_release(T& word, T value) noexcept {
  std::atomic_ref<T>(word).store(value, memory_order_release);
}

class mutex {
 public:
  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend class condition;
  std::mutex mutex_;
};

using lock_guard = std::lock_guard<mutex>;
using unique_lock = std::unique_lock<mutex>;

class condition {
 public:
  void wait(unique_lock& lock) {
    std::unique_lock<std::mutex> inner(lock.mutex()->mutex_, std::adopt_lock);
    condition_.wait(inner);
    inner.release();
  }
  template <class Done>
  void wait(unique_lock& lock, Done done) {
    while (!done()) wait(lock);
  }
  // Returns: what done() says at the end.
  template <class Done>
  bool wait_for(unique_lock& lock, std::chrono::nanoseconds limit, Done done) {
    std::unique_lock<std::mutex> inner(lock.mutex()->mutex_, std::adopt_lock);
    bool const result = condition_.wait_for(inner, limit, done);
    inner.release();
    return result;
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
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

class thread {
 public:
  thread() noexcept = default;
  template <class F>
  explicit thread(F&& body) : thread_(std::forward<F>(body)) {}
  thread(thread&&) noexcept = default;
  thread& operator=(thread&&) noexcept = default;
  bool joinable() const noexcept { return thread_.joinable(); }
  void join() { thread_.join(); }

 private:
  std::thread thread_;
};

// One T a thread, made at first use, destroyed with the thread. At most thread_slots of these in a process.
inline constexpr int thread_slots = 16;
namespace detail {
struct slot_value {
  void* value = nullptr;
  void (*destroy)(void*) noexcept = nullptr;
};
std::array<slot_value, thread_slots>& this_thread_slots() noexcept;
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
    }
    return *static_cast<T*>(at.value);
  }

 private:
  int slot_;
};

std::int64_t now_ns() noexcept;  // monotonic, from an arbitrary start
void sleep_ns(std::int64_t) noexcept;
void yield_thread() noexcept;
std::uint64_t this_thread_id() noexcept;  // counts up from 1 in order of first use; never reused in a process
int hardware_threads() noexcept;

}  // namespace weir::base
