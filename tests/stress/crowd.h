// A crowd is several real threads that do one thing each, again and again,
// until the time is over or one of them sees something wrong.
// Threads: as each member says. Nothing here orders one member's steps before another's, so that the thread
// sanitizer sees what the library orders.
//
// WEIR_STRESS_SECONDS=s: the time of each crowd, instead of half a second; such as 0.05 or 600.
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

// as WEIR_STRESS_SECONDS says. A value that is no positive number ends the program with status 2
std::chrono::nanoseconds stress_time();

class crowd {
 public:
  using random = std::minstd_rand;
  explicit crowd(std::uint64_t seed, std::chrono::nanoseconds time = stress_time()) : seed_(seed), time_(time) {}
  crowd(crowd const&) = delete;

  // Each step draws from the member's own numbers. An exception of a step is something wrong.
  void member(std::function<void(random&)> step) {
    member([this, step](random& r) {
      while (goes_on()) step(r);
    }, whole_life{});
  }
  struct whole_life {};  // the member's own loop, which asks goes_on()
  void member(std::function<void(random&)> life, whole_life) { members_.push_back(std::move(life)); }

  bool goes_on() const noexcept { return !over_.load(std::memory_order_relaxed); }
  void fail(std::string what);  // Threads: any. The first counts

  // All members begin together, and its time is over when all have ended. Returns: what was wrong; empty:
  // nothing. Blocks: until all members have ended
  std::string run();

 private:
  std::uint64_t seed_;
  std::chrono::nanoseconds time_;
  std::vector<std::function<void(random&)>> members_;
  std::atomic<bool> over_{false};
  std::mutex lock_;
  std::condition_variable changed_;
  std::string wrong_;  // under lock_, as what follows
  std::size_t there_ = 0, gone_ = 0;
  bool failed_ = false;
};

// A program of several crowds, one after the other, each on what it makes anew:
// round(number) until the time is over or something is wrong.
// Returns: what was wrong; empty: nothing
template <class Round>
std::string in_rounds(std::chrono::nanoseconds time, Round round) {
  auto const end = std::chrono::steady_clock::now() + time;
  std::string wrong = round(std::uint64_t{0});
  for (std::uint64_t k = 1; wrong.empty() && std::chrono::steady_clock::now() < end; ++k) wrong = round(k);
  return wrong;
}

void pause(std::chrono::nanoseconds) noexcept;  // without sleep
// What this thread writes next others see a hundred nanoseconds later than they would: a write to memory that
// no cache holds is before it in the processor's queue of writes. What it reads next waits for nothing. So a
// fence that is missing between a write and a read shows soon.
void hold_back_writes() noexcept;

// A place where members hand something over:
// who takes it comes after who put it there, and that is all the order there is.
template <class T>
class hand_over {
 public:
  bool put(T* one) noexcept {  // false: the place is taken
    T* none = nullptr;
    return at_.compare_exchange_strong(none, one, std::memory_order_release, std::memory_order_relaxed);
  }
  T* take() noexcept {
    return at_.load(std::memory_order_relaxed) ? at_.exchange(nullptr, std::memory_order_acquire) : nullptr;
  }

 private:
  alignas(64) std::atomic<T*> at_{nullptr};
};

// Marks the first and the last word of a block as its taker's own. Another taker of the same bytes is seen by
// the first of the two that looks again; the thread sanitizer sees one that the library did not order behind
// the return of the block. Requires: 16 B or more
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
