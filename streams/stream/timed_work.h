// Device times of stream work: timing events before and after it, while a timeline is recorded.
// Threads: any; one object belongs to one thread.
//
// An event on a separate stream, waited for at once, relates device time to host time, within about 20 us.
// Spans of one device relate to each other within the events' 0.5 us.
#pragma once
#include "runtime/clock/stream_clock.h"
#include "runtime/observe/span_recorder.h"

namespace weir::streams {

// Times the work enqueued while it lives, and its call. Not on a captured stream: graphs run at launches.
class [[nodiscard]] timed_work {
 public:
  timed_work(clock::stream_clock& stream, std::string_view name, std::size_t bytes, source_location at,
             std::uint64_t waits_for = 0) noexcept
      : call_(name, at, bytes, stream.id()) {
    if (observe::span_recorder::on()) [[unlikely]]
      begin(stream, name, bytes, at, waits_for);
  }
  ~timed_work() {
    if (open_) [[unlikely]]
      end();
  }
  timed_work(timed_work const&) = delete;

 private:
  struct open;
  void begin(clock::stream_clock&, std::string_view name, std::size_t bytes, source_location,
             std::uint64_t waits_for) noexcept;
  void end() noexcept;
  observe::host_span call_;
  open* open_ = nullptr;
};

// A launch consists of two calls of weir. At most one per thread at a time.
void begin_timed_launch(clock::stream_clock&, source_location) noexcept;
void end_timed_launch() noexcept;

// Moves spans with complete events to the timeline. Blocks: until all of this runtime's are complete.
void collect_timed_work(runtime::impl&) noexcept;

}  // namespace weir::streams
