// A crowd is several real threads that each repeat one action, until the time is over or one fails.
// Threads: as each member says. Nothing here orders one member's steps before another's, so that the thread
// sanitizer sees what the library orders.
//
// WEIR_STRESS_SECONDS=s sets the time of each crowd (default 0.5), such as 0.05 or 600.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace weir::tests {

// From WEIR_STRESS_SECONDS. If that is no positive number, the program ends with status 2.
std::chrono::nanoseconds stress_time();

class crowd {
 public:
  using random = std::minstd_rand;
  explicit crowd(std::uint64_t seed, std::chrono::nanoseconds time = stress_time()) : seed_(seed), time_(time) {}
  crowd(crowd const&) = delete;

  // Each step draws from its member's own numbers. An exception is a failure.
  void member(std::function<void(random&)> step) {
    member(
        [this, step](random& r) {
          while (goes_on())
            step(r);
        },
        whole_life{});
  }
  struct whole_life {};  // the member's own loop, which checks goes_on()
  void member(std::function<void(random&)> life, whole_life) { members_.push_back(std::move(life)); }

  bool goes_on() const noexcept { return !over_.load(std::memory_order_relaxed); }
  void fail(std::string what);  // Threads: any. The first one counts

  // Starts all members together. Returns: the first failure;
  // empty: none. Blocks: until all members have ended.
  std::string run();

 private:
  std::uint64_t seed_;
  std::chrono::nanoseconds time_;
  std::vector<std::function<void(random&)>> members_;
  std::atomic<bool> over_{false};
  std::mutex lock_;
  std::condition_variable changed_;
  std::string wrong_;  // under lock_, as the next two
  std::size_t there_ = 0, gone_ = 0;
  bool failed_ = false;
};

// Several crowds in turn, each on new objects: round(number) until the time
// is over or one fails. Returns: the failure; empty: none.
template <class Round>
std::string in_rounds(std::chrono::nanoseconds time, Round round) {
  auto const end = std::chrono::steady_clock::now() + time;
  std::string wrong = round(std::uint64_t{0});
  for (std::uint64_t k = 1; wrong.empty() && std::chrono::steady_clock::now() < end; ++k)
    wrong = round(k);
  return wrong;
}

void pause(std::chrono::nanoseconds) noexcept;  // without sleep
// Delays this thread's next writes by about a hundred nanoseconds, and not its
// next reads: a write to uncached memory precedes them in the store buffer. A
// missing fence between a write and a read then shows soon.
void hold_back_writes() noexcept;

// Passes an object between members. put() happens before take(), and nothing else is ordered.
template <class T>
class hand_over {
 public:
  bool put(T* one) noexcept {  // false: occupied
    T* none = nullptr;
    return at_.compare_exchange_strong(none, one, std::memory_order_release, std::memory_order_relaxed);
  }
  T* take() noexcept {
    return at_.load(std::memory_order_relaxed) ? at_.exchange(nullptr, std::memory_order_acquire) : nullptr;
  }

 private:
  alignas(64) std::atomic<T*> at_{nullptr};
};

// Marks the first and last word of a block for its owner. If a block has two owners,
// the first check after the second mark finds it. ThreadSanitizer finds an allocation
// that is not ordered after the free. Requires: 16 B or more.
class own_mark {
 public:
  own_mark() noexcept = default;
  own_mark(void* at, std::size_t bytes, std::uint64_t value) noexcept
      : first_(static_cast<std::uint64_t volatile*>(at)),
        last_(reinterpret_cast<std::uint64_t volatile*>(static_cast<char*>(at) + bytes / 8 * 8 - 8)),
        value_(value) {
    *first_ = value;
    *last_ = value;
  }
  bool stands() const noexcept { return *first_ == value_ && *last_ == value_; }
  void* at() const noexcept { return const_cast<std::uint64_t*>(first_); }

 private:
  std::uint64_t volatile* first_ = nullptr;
  std::uint64_t volatile* last_ = nullptr;
  std::uint64_t value_ = 0;
};

}  // namespace weir::tests
