// The driver streams of one runtime: a default stream per device, and pooled streams by kind and priority.
// Threads: any. A part of the runtime.
#pragma once
#include <memory>

#include "runtime/clock/stream_clock.h"
#include "weir/stream.h"

namespace weir::streams {

inline driver::stream_kind kind_of(stream_flags f) noexcept {
  return f == stream_flags::blocking ? driver::stream_kind::blocking : driver::stream_kind::independent;
}

class stream_pool {
 public:
  explicit stream_pool(runtime::impl&);
  ~stream_pool();  // Blocks: until the work of its streams is done, except on lost devices
  // Created on first use, which opens the device. Throws: device_lost, driver_error
  clock::stream_clock& default_line(int device, source_location);
  // Exclusive until give_back(). Never a stream of another kind: only one of them is ordered with the legacy
  // stream. Throws: device_lost, driver_error, bad_alloc
  clock::stream_clock& lease(int device, driver::stream_kind, priority, source_location);
  // Of a stream of this pool. No driver call.
  driver::stream_kind kind_of(clock::stream_clock const&);
  void give_back(clock::stream_clock&) noexcept;
  driver::driver& machine() noexcept { return runtime_.machine(); }

 private:
  struct leased {
    clock::stream_clock* stream;  // null: it is being made
    int device;
    driver::stream_kind kind;
    priority at;
    bool out;  // in use
  };
  clock::stream_clock& make(int device, driver::stream_kind, priority, source_location);

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  std::unique_ptr<base::atomic<clock::stream_clock*>[]> defaults_;
  base::guarded<std::vector<clock::stream_clock*>> made_;
  base::guarded<std::vector<leased>> leases_;  // longest idle first: its work is most likely done
};

}  // namespace weir::streams
