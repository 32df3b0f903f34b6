// Streams that callers name by CUDA's handle without a promise: each exists for certain only during the call.
// Threads: any. A part of the runtime.
//
// A handle is given to another stream after its stream was destroyed, so streams are told apart by their id.
// Nothing is asked of a captured stream, so it is known by its handle until it is seen outside of a capture.
// Invariant: a stream whose handle was seen with another id is gone, and not known any more. Of the others
// about `most` a device are known, `most_marked` with those that blocks were marked for, and those that have blocks or
// are in a thread's hands. A marked one may go on when it is set aside: a free of such a block waits for the device.
#pragma once
#include <map>
#include <unordered_map>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "weir/stream.h"

namespace weir::streams {

class borrowed_streams {
 public:
  static constexpr std::size_t most = 64, most_marked = 512;
  // What a thread borrowed last stays valid for it, whatever other threads borrow.
  static constexpr std::size_t kept_by_a_thread = 4;

  explicit borrowed_streams(runtime::impl&);

  enum class of : std::uint8_t { this_device, any_device };
  // A stream of any device is found by asking `device`, which is its own if it is captured and not known. It may
  // turn out to be registered.
  // Requires: the stream exists until the caller's call ends.
  // Throws: invalid_use (of another device), device_lost, driver_error
  clock::stream_clock& named(int device, CUstream_st*, of, source_location);

 private:
  using place = std::pair<int, driver::stream_handle>;  // a device and a handle
  // Each thread has another stream of the handle `per_thread`.
  using place_and_thread = std::pair<place, std::uint64_t>;
  static place_and_thread captured_at(place at) noexcept {
    return {at, at.second == driver::stream_handle::per_thread ? base::this_thread_id() : 0};
  }
  struct one_gone {
    clock::stream_clock* stream;
    bool exists = false;     // it is the named stream, under the name that it had in a capture
    bool set_aside = false;  // it may go on
  };
  using streams_gone = std::vector<one_gone>;
  struct known {
    clock::stream_clock* stream = nullptr;
    place at{-1, driver::stream_handle::none};
    std::uint64_t turn = 0;  // of its last use
  };
  struct contents {
    std::unordered_map<std::uint64_t, known> by_id;
    std::map<place, std::uint64_t> ids;                         // the last id seen at a handle
    std::map<place_and_thread, clock::stream_clock*> captured;  // not seen outside of a capture yet
    std::vector<std::size_t> uncovered;  // by device: gone, without a fence, since it was last waited for
    struct internal_stream {
      clock::stream_clock* stream;
      bool joins = false;  // a call has taken it
    };
    std::vector<internal_stream> internal;  // none goes
    std::uint64_t turn = 0;
    std::size_t after_look = 0;  // how many were known when some were last forgotten
  };
  void retire(streams_gone const&);
  // An internal stream joins the capture, and is given no work there. It tells when the capture is over, although the
  // program's stream may be gone by then.
  void join_capture_of(clock::stream_clock& captured, source_location);
  class uncaptured_stream {  // internal, for one call. Throws: as stream_pool::lease()
   public:
    uncaptured_stream(borrowed_streams&, int device, source_location);
    ~uncaptured_stream() { from_.give_back(*stream_); }
    uncaptured_stream(uncaptured_stream const&) = delete;
    clock::stream_clock& stream() const noexcept { return *stream_; }

   private:
    borrowed_streams& from_;
    clock::stream_clock* stream_ = nullptr;
  };
  clock::stream_clock* take_idle(int device, std::size_t& next);  // from that place on. Null: there is none
  void give_back(clock::stream_clock const&) noexcept;
  clock::stream_clock* known_elsewhere(int& device, driver::identity const&);
  // Without driver calls. Null: the driver has to be asked for its device first. asked: it was
  clock::stream_clock* look_up(int& device, driver::identity const&, of, bool asked, streams_gone&, source_location);
  static void refuse_unless_ok(driver::status, int device, source_location);  // Throws: as named
  clock::stream_clock& find(contents&, int device, driver::identity const&, streams_gone&);
  clock::stream_clock& find_captured(contents&, place, streams_gone&);
  static void forget(contents&, std::uint64_t id, streams_gone&, bool set_aside = false) noexcept;
  void forget_some(contents&, int device, streams_gone&);
  void forget_half(contents&, int device, streams_gone&, bool set_aside);

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  base::guarded<contents> contents_;
};

}  // namespace weir::streams
