// The thread's current runtime, device and streams, and the access to the objects behind public handles.
// Threads: each has its own current device and stream.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/process.h"
#include "runtime/clock/stream_clock.h"
#include "weir/stream.h"

namespace weir {

struct block_info;

namespace detail {
struct WEIR_LOCAL stream_access {  // the only access to the internals of public handles
  static clock::stream_clock* stream(stream_ref s) noexcept { return static_cast<clock::stream_clock*>(s.line_); }
  static stream_ref ref(clock::stream_clock& t) noexcept { return stream_ref(&t, t.tenure()); }
  static stream_ref none() noexcept { return stream_ref(nullptr, 0); }
  static std::uint64_t tenure(stream_ref s) noexcept { return s.tenure_; }
  // Null: moved from, returned, or its registration or runtime has ended.
  static clock::stream_clock* line_if_valid(stream_ref s) noexcept {
    clock::stream_clock* const stream = clock::find(clock::tenure_word::id(s.tenure_));
    return stream && stream->tenure() == s.tenure_ && !(s.tenure_ & clock::tenure_word::ended) ? stream : nullptr;
  }
  static weir::stamp stamp(clock::stamp s) noexcept {
    weir::stamp out;
    out.stream_ = s.stream;
    out.n_ = s.n;
    return out;
  }
  static clock::stamp stamp(weir::stamp s) noexcept { return {s.stream_, s.n_}; }
};
}  // namespace detail

namespace streams {

// In a forked child, threads of the parent may hold locks for ever: every call throws before it takes one.
[[noreturn]] void throw_forked(std::string_view operation, source_location);
// the runtime of this thread's runtime_guard, else the default
inline runtime::impl& current_runtime(source_location const& at) {
  if (process_was_forked()) [[unlikely]]
    throw_forked("runtime", at);
  return runtime_of_thread(at).get();
}
// The device's ordinal for this thread. Throws: invalid_use (cpu where a GPU is needed; no such device)
int resolve(device, runtime::impl&, std::string_view operation, source_location);

// Requires: not moved from (checked by clock_or_throw)
inline clock::stream_clock& clock_of(stream_ref s) noexcept {
  return *detail::stream_access::stream(s);
}
inline stream_ref ref_of(clock::stream_clock& t) noexcept {
  return detail::stream_access::ref(t);
}
// The thread's current stream of that device. Opens the device. Throws: device_lost, driver_error
clock::stream_clock& current_clock(runtime::impl&, int device, source_location const&);
clock::stream_clock& current_clock(runtime::impl&, source_location const&);  // of the current device
int current_ordinal(runtime::impl&);                                         // the current device
// The device that is current in CUDA, as cudaSetDevice and weir's own calls leave it. If none is, weir's, which becomes
// current, if it can. Throws: driver_error
int device_in_cuda(runtime::impl&, std::string_view operation, source_location);
// If none is, `if_none` becomes current, if it can, and is the answer.
int device_in_cuda(runtime::impl&, int if_none, std::string_view operation, source_location);
inline weir::stamp public_stamp(clock::stamp s) noexcept {
  return detail::stream_access::stamp(s);
}
inline clock::stamp inner_stamp(weir::stamp s) noexcept {
  return detail::stream_access::stamp(s);
}

// find_block for memory that deallocate accepts: no shared buffer, no registered range
std::optional<block_info> block_of_allocator(void const*) noexcept;

// Throws as throw_refusal; for a host wait that can never end, with the circle of waits.
void require_not_stuck(driver::driver&, driver::status, std::string_view operation, source_location);

// For messages: "stream 7 of gpu:1".
std::string describe(clock::stream_clock const&);
// Throws: invalid_use (moved from, returned, or its registration or runtime has ended)
[[noreturn]] void throw_not_valid(stream_ref, std::string_view operation, source_location);
inline clock::stream_clock& clock_or_throw(stream_ref s, std::string_view operation, source_location at) {
  if (process_was_forked()) [[unlikely]]
    throw_forked(operation, at);
  if (auto* const stream = detail::stream_access::line_if_valid(s)) [[likely]]
    return *stream;
  throw_not_valid(s, operation, at);
}

// The same for a call that gives work to the stream. Throws also: invalid_use (in a capture that was to be announced)
inline clock::stream_clock& worker_or_throw(stream_ref s, std::string_view operation, source_location at) {
  clock::stream_clock& stream = clock_or_throw(s, operation, at);
  stream.hold_to_promise(operation, at);
  return stream;
}

// Its handle in CUDA, with its device current there. Throws: not_supported (simulated), device_lost
CUstream_st* native_handle(clock::stream_clock const&, source_location);

// A call that gives work to the stream that its caller named. weir cannot ask a borrowed stream later, so it
// gets its fence at the end of the call.
class named_work {
 public:
  explicit named_work(clock::stream_clock& s) noexcept : named_(s), stream_(s) {}
  ~named_work() {
    if (stream_.alive() == clock::life::borrowed) [[unlikely]]
      (void)stream_.fence();
  }

 private:
  clock::named_in_call const named_;
  clock::stream_clock& stream_;
};

// Sets the thread's current device and, with `stream`, its current stream of that device.
void choose(runtime::impl&, int device, clock::stream_clock* stream, std::string_view operation, source_location);
// The same until leave(), which never throws. Marks left out of order: see device_guard.
weir::detail::guard_mark enter(runtime::impl&, int device, clock::stream_clock* stream, std::string_view operation,
                               source_location);
void leave(weir::detail::guard_mark) noexcept;
std::uint64_t misplaced_guards() noexcept;  // guards of this process that ended out of order or on another thread

}  // namespace streams
}  // namespace weir
