// What a thread is doing when it makes a driver call: the public call it is in, and whether anybody was
// promised what it finds out or orders there. Kept only while a checker looks on.
// Threads: each has its own.
#pragma once
#include <string>

#include "weir/types.h"

namespace weir::base {

struct site {
  char const* operation = nullptr;  // "copy"; null: no public call
  source_location at{nullptr, nullptr, 0};
};

// Work of the program that a stream runs on this thread.
struct running_work {
  site given;                // the call that gave it
  int device = -1;
  std::uint64_t stream = 0;  // its number in reports
};
std::string text_of(running_work const&);  // "launch at a.cpp:3 on stream 1 of gpu:0"

struct call_context {
  site in;             // of the outermost public call
  int internal_ordering =
      0;  // > 0: completion seen and waits inserted now are weir's own, a program may not rely on them
  running_work const* running = nullptr;  // null: this thread runs the program's own code
};
call_context& this_call() noexcept;

// While one lives, this thread runs that work.
class [[nodiscard]] running {
 public:
  explicit running(running_work const& w) noexcept : in_(this_call()), before_(in_.running) { in_.running = &w; }
  ~running() { in_.running = before_; }
  running(running const&) = delete;

 private:
  call_context& in_;
  running_work const* before_;
};

// While one lives, driver calls of this thread are made for that line of the program. The outermost counts.
class [[nodiscard]] call_site {
 public:
  call_site(bool wanted, char const* operation, source_location at) noexcept {
    if (!wanted) [[likely]] return;
    call_context& c = this_call();
    if (c.in.operation) return;
    c.in = {operation, at};
    set_ = &c;
  }
  ~call_site() {
    if (set_) set_->in = {};
  }
  call_site(call_site const&) = delete;

 private:
  call_context* set_ = nullptr;
};

// While one lives, what this thread learns from the driver and orders there is weir's own affair:
// another run may do without.
class [[nodiscard]] internal_ordering {
 public:
  explicit internal_ordering(bool wanted) noexcept {
    if (!wanted) [[likely]] return;
    in_ = &this_call();
    ++in_->internal_ordering;
  }
  ~internal_ordering() {
    if (in_) --in_->internal_ordering;
  }
  internal_ordering(internal_ordering const&) = delete;

 private:
  call_context* in_ = nullptr;
};

}  // namespace weir::base
