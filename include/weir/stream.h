// weir/stream.h: streams, stamps, events. `stream` owns, `stream_ref` borrows, `stream_guard` restores.
// Threads: any, for stamps, streams and events alike; current streams and guards are each thread's own.
#pragma once
#include <chrono>
#include <span>

#include "weir/device.h"

struct CUstream_st;  // the CUDA toolkit's own tag: `CUstream_st*` is `cudaStream_t`, without its header
struct CUevent_st;

namespace weir {
using float_milliseconds = std::chrono::duration<float, std::milli>;
// torch: lower runs first; clamped to what the device has
enum class priority : std::int8_t { normal = 0, high = -1, highest = -2 };
class event;
namespace detail {
struct stream_access;
}

// "all work given to that stream up to here".
// 16 bytes, copyable; taking one is no driver call. A default one is complete
class stamp {
 public:
  // Blocks: no. At most a few driver calls, none once the answer was yes. Throws: device_lost, driver_error
  bool query(source_location = source_location::current()) const;
  // Blocks: host. Throws: device_lost, driver_error
  void synchronize(source_location = source_location::current()) const;
  friend bool operator==(stamp, stamp) = default;

 private:
  friend struct detail::stream_access;
  std::uint64_t stream_ = 0, n_ = 0;
};

// Borrows a stream until that is given back, its registration ends or its runtime does. Calls after that
// throw invalid_use; allocate and deallocate of small blocks, and record_stream,
// may still serve a stream that was given back.
class stream_ref {
 public:
  weir::device device() const noexcept;
  // Never reused in a process for another stream of the driver. A leased stream keeps its id from lease to
  // lease: what was known of its order stays true.
  std::uint64_t id() const noexcept;
  // is all work given so far done? Blocks: no. Throws: device_lost, driver_error
  bool query(source_location = source_location::current()) const;
  void synchronize(source_location = source_location::current()) const;  // Blocks: host, until it is
  weir::stamp stamp() const noexcept;               // a complete one when its runtime has ended
  // Work given to this stream from now on runs after that: after the stamped work, after the event's last
  // record (nothing when it was never recorded), after all work given so far to the other stream. No driver
  // call when the order is known already. Blocks: the stream, not the host.
  // Inside a capture streams wait for streams and events of the same capture: a wait for a captured stream,
  // or for an event recorded inside, captures this one too.
  // Other work must be known to be complete: synchronize with it before.
  // Throws: invalid_use (of another runtime; an external stream that has ended;
  // into or out of a capture), device_lost, driver_error
  void wait(weir::stamp, source_location = source_location::current()) const;
  void wait(event const&, source_location = source_location::current()) const;  // torch: wait_event
  void wait(stream_ref, source_location = source_location::current()) const;  // torch: wait_stream
  event record_event(source_location = source_location::current()) const;
  bool is_capturing(source_location = source_location::current()) const;
  // For <<<>>> and libraries. Makes the stream's device CUDA's current one, weir's current device stays.
  // Throws: not_supported on a simulated device (use weir::launch), device_lost
  CUstream_st* native(source_location = source_location::current()) const;
  friend bool operator==(stream_ref, stream_ref) noexcept = default;

 private:
  friend struct detail::stream_access;
  stream_ref(void* line, std::uint64_t tenure) noexcept : line_(line), tenure_(tenure) {}
  void* line_;  // the library's. Its type is not named here: namespace clock would hide clock() of <time.h>
  std::uint64_t tenure_;  // which lease or registration of which stream
};

class stream {  // leased from the device's pool: no two live `stream`s are the same stream, unlike torch's 33rd
 public:
  // Throws: invalid_use (cpu, no such device), device_lost, driver_error
  // of the current device
  explicit stream(weir::priority = priority::normal, source_location = source_location::current());
  explicit stream(weir::device, weir::priority = priority::normal, source_location = source_location::current());
  ~stream();  // gives it back; its work goes on, its memory serves others. Blocks: no
  stream(stream&&) noexcept;
  stream& operator=(stream&&) noexcept;
  operator stream_ref() const noexcept { return ref_; }  // Requires: not moved from
  stream_ref ref() const noexcept { return ref_; }

  // What stream_ref offers, without writing ref().
  weir::device device() const noexcept { return ref_.device(); }
  std::uint64_t id() const noexcept { return ref_.id(); }
  bool query(source_location at = source_location::current()) const { return ref_.query(at); }
  void synchronize(source_location at = source_location::current()) const { ref_.synchronize(at); }
  weir::stamp stamp() const noexcept { return ref_.stamp(); }
  void wait(weir::stamp s, source_location at = source_location::current()) const { ref_.wait(s, at); }
  void wait(event const& e, source_location at = source_location::current()) const { ref_.wait(e, at); }
  void wait(stream_ref other, source_location at = source_location::current()) const { ref_.wait(other, at); }
  event record_event(source_location = source_location::current()) const;
  CUstream_st* native(source_location at = source_location::current()) const { return ref_.native(at); }

 private:
  stream_ref ref_;
};

// torch.cuda.ExternalStream: a handle of yours, registered while this object lives; registered twice it is
// one stream. Destroy this first, then your stream.
class external_stream {
 public:
  // Null is CUDA's legacy stream: ordered with all blocking streams of its device, weir's default stream
  // among them, and on simulated devices too. The per-thread default stream is refused:
  // it is another stream on every thread.
  // Throws: invalid_use (the stream is of another device;
  // per-thread default), not_supported (another stream, on a simulated device)
  external_stream(weir::device, CUstream_st*, source_location = source_location::current());
  ~external_stream();  // records a last event on your stream
  external_stream(external_stream const&) = delete;
  operator stream_ref() const noexcept { return ref_; }

 private:
  stream_ref ref_;
};

// The default stream of each device is ordered with CUDA's legacy stream, both ways:
// bare <<<>>> launches are ordered with it.
stream_ref default_stream(device = gpu, source_location = source_location::current());
// the default stream, until the thread chooses another
stream_ref current_stream(device = gpu, source_location = source_location::current());
// Makes it current for this thread, and its device too. Throws:
// invalid_use (of another runtime than the thread's)
void set_stream(stream_ref, source_location = source_location::current());

// with torch.cuda.stream(s): sets the stream's device too, restores both. Out of order: as device_guard
class [[nodiscard]] stream_guard {
 public:
  explicit stream_guard(stream_ref, source_location = source_location::current());  // Throws: as set_stream
  ~stream_guard();
  stream_guard(stream_guard const&) = delete;

 private:
  detail::guard_mark mark_;
};

struct event_options {
  bool timing = false;         // elapsed_time can be asked
  bool blocking_sync = false;  // synchronize sleeps instead of spinning
};
class event {  // the driver's object is made at the first record, on that stream's device
 public:
  explicit event(event_options = {});
  ~event();  // cancels nothing, makes no driver call
  event(event&&) noexcept;
  event& operator=(event&&) noexcept;
  // Stands from now on for all work given to the stream so far; waits enqueued before keep what they waited
  // for. Inside a capture it is good for waits inside alone, until it is recorded again outside.
  // Throws: invalid_use (recorded on another device before), device_lost, driver_error:
  // it stands for what it did then
  void record(stream_ref, source_location = source_location::current());
  void record(source_location = source_location::current());  // on the current stream
  // true when never recorded, as torch. Blocks: no. Throws: device_lost
  bool query(source_location = source_location::current()) const;
  void synchronize(source_location = source_location::current()) const;  // Blocks: host, until it would answer true
  // Throws: invalid_use unless both were made with timing, recorded on one device, and are complete
  float_milliseconds elapsed_time(event const& end, source_location = source_location::current()) const;
  // Null when never recorded. From then on weir concludes nothing from this event:
  // you may record it yourself.
  // Throws: not_supported on a simulated device
  CUevent_st* native(source_location = source_location::current()) const;

 private:
  friend class stream_ref;
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir
