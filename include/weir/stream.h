// weir/stream.h: streams, stamps, events. `stream` owns, `stream_ref` borrows, `stream_guard` restores.
#pragma once
#include <chrono>
#include <span>
#include "weir/device.h"

struct CUstream_st;  // the CUDA toolkit's own tag: `CUstream_st*` is `cudaStream_t`, without its header
struct CUevent_st;

namespace weir {
using milliseconds = std::chrono::duration<float, std::milli>;
enum class priority : std::int8_t { normal = 0, high = -1, highest = -2 };  // torch: lower runs first
class event;

class stamp {  // "all work given to this stream up to here". 16 bytes, copyable; taking one is no driver call
 public:
  bool query() const;                                       // Blocks: no
  void synchronize(here = here::current()) const;           // Blocks: host
  friend bool operator==(stamp, stamp) = default;
 private:
  friend class stream_ref;
  std::uint64_t stream_ = 0, n_ = 0;
};

class stream_ref {  // one pointer; valid while its stream is. Threads: any
 public:
  weir::device device() const noexcept;
  std::uint64_t id() const noexcept;                        // never reused in a process
  bool query() const;
  void synchronize(here = here::current()) const;           // Blocks: host
  weir::stamp stamp() const noexcept;
  void wait(weir::stamp, here = here::current()) const;     // Blocks: the stream, not the host. All three merge clocks
  void wait(event const&, here = here::current()) const;    // wait_event
  void wait(stream_ref, here = here::current()) const;      // wait_stream
  event record_event() const;
  bool is_capturing() const;
  CUstream_st* native() const;                              // for <<<>>> and libraries; makes the device current for CUDA. Throws: not_supported on a simulated device (use weir::launch)
  friend bool operator==(stream_ref, stream_ref) noexcept = default;
 private:
  struct state; state* state_;
  explicit stream_ref(state*) noexcept;
  friend class stream; friend class foreign_stream; friend stream_ref current_stream(weir::device); friend stream_ref default_stream(weir::device);
};

class stream {  // leased from the device's pool: no two live `stream`s are the same stream, unlike torch's 33rd
 public:
  explicit stream(weir::priority = priority::normal, here = here::current());
  explicit stream(weir::device, weir::priority = priority::normal, here = here::current());
  ~stream();                                                // gives it back; its work goes on, its memory serves others
  stream(stream&&) noexcept; stream& operator=(stream&&) noexcept;
  operator stream_ref() const noexcept;
  stream_ref ref() const noexcept;
 private:
  stream_ref ref_;
};
class foreign_stream {  // torch.cuda.ExternalStream: a handle of yours, registered while this object lives. Destroy this first, then your stream
 public:
  foreign_stream(weir::device, CUstream_st*);
  ~foreign_stream();
  operator stream_ref() const noexcept;
 private:
  stream_ref ref_;
};
stream_ref current_stream(device = gpu);
stream_ref default_stream(device = gpu);
void set_stream(stream_ref);

class [[nodiscard]] stream_guard {  // with torch.cuda.stream(s): sets the stream's device too, restores both
 public:
  explicit stream_guard(stream_ref);
  ~stream_guard();
  stream_guard(stream_guard const&) = delete;
};

struct event_options { bool timing = false, interprocess = false, blocking_sync = false; };
class event {  // driver object made at the first record
 public:
  explicit event(event_options = {});
  ~event();
  event(event&&) noexcept; event& operator=(event&&) noexcept;
  void record(stream_ref, here = here::current());
  bool query() const;                                       // true when never recorded, as torch
  void synchronize(here = here::current()) const;
  milliseconds elapsed_time(event const& end) const;        // Requires: both timed, done, of one device
  CUevent_st* native() const;
 private:
  struct state; state* state_;
};
}
