// When a stream did its work: timing events before and after it, while a timeline is recorded.
// Threads: any; one object belongs to one thread.
//
// Device time becomes the host's by an event recorded on a stream of its own and waited for at once: good to
// about 20 us, and between two spans of one device to the events' own half microsecond.
#pragma once
#include "runtime/clock/stream_clock.h"
#include "runtime/observe/span_recorder.h"

namespace weir::streams {

// Work given to the stream while one lives, and the call that gave it. Nothing on a captured stream:
// a graph runs whenever it is launched.
class [[nodiscard]] timed_work {
 public:
  timed_work(clock::timeline& line, std::string_view name, std::size_t bytes, source_location at,
             std::uint64_t waits_for = 0) noexcept
      : call_(name, at, bytes, line.id()) {
    if (observe::activity::on()) [[unlikely]] begin(line, name, bytes, at, waits_for);
  }
  ~timed_work() {
    if (open_) [[unlikely]] end();
  }
  timed_work(timed_work const&) = delete;

 private:
  struct open;
  void begin(clock::timeline&, std::string_view name, std::size_t bytes, source_location,
             std::uint64_t waits_for) noexcept;
  void end() noexcept;
  observe::host_span call_;
  open* open_ = nullptr;
};

// A launch begins and ends in two calls of weir. One at a time of a thread.
void begin_timed_launch(clock::timeline&, source_location) noexcept;
void end_timed_launch() noexcept;

// Spans whose events are complete go to the timeline. Blocks: until all of this runtime's are.
void collect_timed_work(runtime::impl&) noexcept;

}  // namespace weir::streams
