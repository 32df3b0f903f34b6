// weir/stream.h: streams, stamps, events. `stream` owns, `stream_ref` borrows, `stream_guard` restores.
// Threads: any, for stamps, streams and events. Current streams and guards belong to one thread.
#pragma once
#include <chrono>
#include <span>

#include "weir/device.h"

struct CUstream_st;  // the CUDA toolkit's tag: `CUstream_st*` is `cudaStream_t`, without its header
struct CUevent_st;

namespace weir WEIR_API {
using float_milliseconds = std::chrono::duration<float, std::milli>;
// torch: lower runs first; clamped to the device's range
enum class priority : std::int8_t { normal = 0, high = -1, highest = -2 };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // GCC 12 takes weir::non_blocking to be shadowed by the enumerator
// Whether CUDA's legacy stream, which launches and copies use that name no stream, is ordered with a stream.
// The values are CUDA's.
enum class stream_flags : std::uint8_t {
  // cudaStreamDefault, the streams of cudaStreamCreate: work of the legacy stream waits for all earlier work of
  // the device's blocking streams, and their later work waits for it. A capture of a blocking stream forbids
  // the legacy stream meanwhile.
  blocking = 0,
  non_blocking = 1,  // cudaStreamNonBlocking: waits and events alone order it with the legacy stream
};
#pragma GCC diagnostic pop
class event;
namespace detail {
struct stream_access;
}

// All work enqueued on a stream so far. 16 bytes, copyable, made without a driver call. Default: complete.
class stamp {
 public:
  // Whether it is complete. A few driver calls, none once true. Blocks: no. Throws: device_lost, driver_error
  bool query(source_location = source_location::current()) const;
  // Blocks: host. Throws: device_lost, driver_error
  void synchronize(source_location = source_location::current()) const;
  friend bool operator==(stamp, stamp) = default;

 private:
  friend struct detail::stream_access;
  std::uint64_t stream_ = 0, n_ = 0;
};

// Borrows a stream until its lease, its registration or its runtime ends. Later calls throw invalid_use,
// except record_stream and the allocation and free of small blocks, which may still succeed.
class stream_ref {
 public:
  weir::device device() const noexcept;
  // Unique in the process. A leased stream keeps its id from lease to lease, so that known order stays valid.
  std::uint64_t id() const noexcept;
  // Whether all work enqueued so far is complete. Blocks: no. Throws: device_lost, driver_error
  bool query(source_location = source_location::current()) const;
  void synchronize(source_location = source_location::current()) const;  // Blocks: host, until complete
  weir::stamp stamp() const noexcept;                                    // a complete one after its runtime has ended
  // Orders later work of this stream after the stamped work, the event's last record (no effect if never
  // recorded), or all work enqueued so far on the other stream. Makes no driver call if the order is already
  // known. Blocks: the stream, not the host.
  // In a capture, a stream can wait for streams and events of the same capture; such a wait captures this
  // stream too. Other work must be known to be complete: synchronize with it first.
  // Throws: invalid_use (another runtime, an ended external stream, into or out of a capture), device_lost,
  // driver_error
  // For a stamp it may wait for more, at most for all that the stamp's stream has now; for an event for no
  // more.
  void wait(weir::stamp, source_location = source_location::current()) const;
  void wait(event const&, source_location = source_location::current()) const;  // torch: wait_event
  void wait(stream_ref, source_location = source_location::current()) const;    // torch: wait_stream
  event record_event(source_location = source_location::current()) const;
  bool is_capturing(source_location = source_location::current()) const;
  // cudaStreamGetFlags: whether the legacy stream is ordered with it; blocking for the legacy stream itself and
  // for per-thread streams. Blocks: no. Throws: invalid_use (an external stream in a capture), device_lost
  stream_flags flags(source_location = source_location::current()) const;
  // Handle for <<<>>> and libraries. Makes the stream's device current in CUDA, not in weir.
  // Throws: not_supported on a simulated device (use weir::launch), device_lost
  CUstream_st* native(source_location = source_location::current()) const;
  friend bool operator==(stream_ref, stream_ref) noexcept = default;

 private:
  friend struct detail::stream_access;
  stream_ref(void* line, std::uint64_t tenure) noexcept : line_(line), tenure_(tenure) {}
  void* line_;            // the library's timeline; as a type here, namespace clock would hide <time.h>'s clock()
  std::uint64_t tenure_;  // number of the lease or registration
};

// Leased from the device's pool: live `stream`s are always distinct, unlike torch's 33rd.
// Default: non_blocking. A launch or copy without a stream is not ordered with it, as it is with a stream of
// cudaStreamCreate. Until a program names a stream everywhere, make its streams with stream_flags::blocking.
class stream {
 public:
  // Default: the current device. Throws: invalid_use (cpu, no such device), device_lost, driver_error
  explicit stream(weir::priority = priority::normal, source_location = source_location::current());
  explicit stream(weir::device, weir::priority = priority::normal, source_location = source_location::current());
  explicit stream(stream_flags, weir::priority = priority::normal, source_location = source_location::current());
  stream(weir::device, stream_flags, weir::priority = priority::normal, source_location = source_location::current());
  ~stream();  // returns it; its work continues, and other streams may use its memory. Blocks: no
  stream(stream&&) noexcept;
  stream& operator=(stream&&) noexcept;
  operator stream_ref() const noexcept { return ref_; }  // Requires: not moved from
  stream_ref ref() const noexcept { return ref_; }

  // The same as stream_ref, without ref().
  weir::device device() const noexcept { return ref_.device(); }
  std::uint64_t id() const noexcept { return ref_.id(); }
  bool query(source_location at = source_location::current()) const { return ref_.query(at); }
  void synchronize(source_location at = source_location::current()) const { ref_.synchronize(at); }
  weir::stamp stamp() const noexcept { return ref_.stamp(); }
  void wait(weir::stamp s, source_location at = source_location::current()) const { ref_.wait(s, at); }
  void wait(event const& e, source_location at = source_location::current()) const { ref_.wait(e, at); }
  void wait(stream_ref other, source_location at = source_location::current()) const { ref_.wait(other, at); }
  event record_event(source_location = source_location::current()) const;
  stream_flags flags(source_location at = source_location::current()) const { return ref_.flags(at); }
  CUstream_st* native(source_location at = source_location::current()) const { return ref_.native(at); }

 private:
  stream_ref ref_;
};

// What a program promises of a stream that it registers.
struct external_stream_options {
  // Promises that is_capturing() is called on the stream inside each capture, before weir's other calls on it, as on
  // weir's own streams. Then no allocation asks the driver first.
  // Any thread may call it, if the others' calls come after it. A stream that joins a capture by a wait of weir needs
  // no call, nor does the end of a capture. A stream that is never captured keeps the promise.
  // If one registration of the stream lacks the promise, weir asks until the last one ends.
  // Broken: a block from outside may serve in the graph, and others get it while the graph runs. A launch, copy, fill,
  // wait or record that names the stream, or an allocation that no cache serves, throws invalid_use if it meets such
  // a capture. It has no effect, and weir knows of the capture from then on. Blocks: no
  bool announces_captures = false;
};

// torch.cuda.ExternalStream: registers a stream of the program during this object's lifetime. Registered
// twice, it is one stream. It then is as quick as weir's own: caches of each thread, fences only when another
// stream looks for memory. It keeps the flags that the program made it with.
// Requires: the stream exists until this object is destroyed.
class external_stream {
 public:
  // Null is CUDA's legacy stream: it is ordered with all blocking streams of its device, weir's default
  // stream included, on simulated devices too. The per-thread default stream is refused, because it is a
  // different stream on every thread: borrow it. Simulated devices: see simulated_stream of weir/sim.h.
  // Throws: invalid_use (a stream of another device, the per-thread default), device_lost
  external_stream(weir::device, CUstream_st*, source_location = source_location::current());
  external_stream(weir::device, CUstream_st*, external_stream_options,  // the same
                  source_location = source_location::current());
  ~external_stream();  // records a last event on the stream, and waits for calls of other threads that ask about it
  external_stream(external_stream const&) = delete;
  operator stream_ref() const noexcept { return ref_; }

 private:
  stream_ref ref_;
};

// The stream with this handle, for calls that follow at once: no promise is needed that it exists later. weir
// asks it only inside calls that name it, and tells streams apart by CUDA's id, as a handle may be given to a
// later stream. A registered handle is the registered stream. Null is the legacy stream; cudaStreamPerThread
// is the caller's; both are blocking, others as the program made them. A borrowed stream serves allocate,
// deallocate, record_stream, launch, copy, fill, wait, query and synchronize. What needs a stream for longer
// refuses it (set_stream) or needs it registered. Free its blocks by deallocate(borrow_stream(…), p): after a
// free that does not name it, memory may have to wait for the whole device.
// Valid: while the stream exists, until this thread has borrowed four others. Blocks: a new stream after 64
// that ended without a fence waits for the device.
// Throws: invalid_use (a stream of another device), device_lost, driver_error
stream_ref borrow_stream(weir::device, CUstream_st*, source_location = source_location::current());

// The device's default stream. It is blocking: ordered with CUDA's legacy stream, and so with bare <<<>>>
// launches.
stream_ref default_stream(device = gpu, source_location = source_location::current());
// The default stream, unless the thread has set another.
stream_ref current_stream(device = gpu, source_location = source_location::current());
// Makes the stream and its device current for this thread. Throws: invalid_use (of another runtime)
void set_stream(stream_ref, source_location = source_location::current());

// Sets the stream and its device and restores both: with torch.cuda.stream(s). Out of order: as device_guard
class [[nodiscard]] stream_guard {
 public:
  explicit stream_guard(stream_ref, source_location = source_location::current());  // Throws: as set_stream
  ~stream_guard();
  stream_guard(stream_guard const&) = delete;

 private:
  detail::guard_mark mark_;
};

struct event_options {
  bool timing = false;         // enables elapsed_time
  bool blocking_sync = false;  // synchronize sleeps instead of spinning
};
// The driver's event is created at the first record, on that stream's device. An event that was moved from is as a
// new one. Until it is recorded again, it belongs to one thread.
class event {
 public:
  explicit event(event_options = {});
  ~event();  // cancels nothing, makes no driver call
  event(event&&) noexcept;
  event& operator=(event&&) noexcept;
  // Captures all work enqueued on the stream so far. Waits enqueued on an earlier record are unaffected, as
  // with cudaEventRecord. Recorded in a capture, it serves waits inside only, until recorded outside.
  // Throws: invalid_use (recorded on another device), device_lost, driver_error: the old record stays
  void record(stream_ref, source_location = source_location::current());
  void record(source_location = source_location::current());  // on the current stream
  // Whether the recorded work is complete; true if none, as in torch. Blocks: no. Throws: device_lost
  bool query(source_location = source_location::current()) const;
  void synchronize(source_location = source_location::current()) const;  // Blocks: host, until query() is true
  // Throws: invalid_use unless both have timing, were recorded on one device, and are complete
  float_milliseconds elapsed_time(event const& end, source_location = source_location::current()) const;
  // Null if never recorded. weir then derives no order from this event, because the program may record it.
  // Throws: not_supported on a simulated device
  CUevent_st* native(source_location = source_location::current()) const;

 private:
  friend class stream_ref;
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir
