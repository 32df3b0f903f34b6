// The public call that a thread makes driver calls for, and whether the program may rely on their effects.
// Kept only while a checker is attached.
// Threads: each has its own.
#pragma once
#include <string>
#include <utility>

#include "weir/types.h"

namespace weir::base {

struct site {
  char const* operation = nullptr;  // "copy"; null: no public call
  source_location at{nullptr, nullptr, 0};
};

// Work of the program that a stream runs on this thread.
struct running_work {
  site given;  // the call that enqueued it
  int device = -1;
  std::uint64_t stream = 0;  // its number in reports
};
std::string text_of(running_work const&);  // "launch at a.cpp:3 on stream 1 of gpu:0"

struct call_context {
  site in;                    // of the outermost public call
  int internal_ordering = 0;  // > 0: the program may not rely on completion seen or waits inserted now
  bool moves_a_pool = false;  // its copies are of blocks that may be freed meanwhile
  int unwatched = 0;          // > 0: its CUDA calls are weir's own, or declared: a watch does not judge them
  running_work const* running = nullptr;  // null: this thread runs the program's own code
};
call_context& this_call() noexcept;

// While one exists, this thread runs that work.
class [[nodiscard]] running {
 public:
  explicit running(running_work const& w) noexcept : in_(this_call()), before_(in_.running) { in_.running = &w; }
  ~running() { in_.running = before_; }
  running(running const&) = delete;

 private:
  call_context& in_;
  running_work const* before_;
};

// While one exists, driver calls of this thread count for that line of the program. The outermost one wins.
class [[nodiscard]] call_site {
 public:
  call_site(bool wanted, char const* operation, source_location at) noexcept {
    if (!wanted) [[likely]]
      return;
    call_context& c = this_call();
    if (c.in.operation)
      return;
    c.in = {operation, at};
    set_ = &c;
  }
  ~call_site() {
    if (set_)
      set_->in = {};
  }
  call_site(call_site const&) = delete;

 private:
  call_context* set_ = nullptr;
};

// While one exists, the program may not rely on what this thread learns from the driver or orders there.
class [[nodiscard]] internal_ordering {
 public:
  explicit internal_ordering(bool wanted) noexcept {
    if (!wanted) [[likely]]
      return;
    in_ = &this_call();
    ++in_->internal_ordering;
  }
  ~internal_ordering() {
    if (in_)
      --in_->internal_ordering;
  }
  internal_ordering(internal_ordering const&) = delete;

 private:
  call_context* in_ = nullptr;
};

// While one exists, this thread copies bytes of a pool, of blocks that other threads may free meanwhile.
class [[nodiscard]] moving_a_pool {
 public:
  moving_a_pool() noexcept : before_(std::exchange(this_call().moves_a_pool, true)) {}
  ~moving_a_pool() { this_call().moves_a_pool = before_; }
  moving_a_pool(moving_a_pool const&) = delete;

 private:
  bool const before_;
};

// While one exists, this thread's CUDA calls are weir's own, or declared.
class [[nodiscard]] unwatched {
 public:
  unwatched() noexcept { ++this_call().unwatched; }
  ~unwatched() { --this_call().unwatched; }
  unwatched(unwatched const&) = delete;
};

// While one exists, the program may rely on it again: it has called the program back.
class [[nodiscard]] program_ordering {
 public:
  program_ordering() noexcept : before_(std::exchange(this_call().internal_ordering, 0)) {}
  ~program_ordering() { this_call().internal_ordering = before_; }
  program_ordering(program_ordering const&) = delete;

 private:
  int const before_;
};

}  // namespace weir::base
