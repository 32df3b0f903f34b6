// The driver streams of one runtime: a default stream a device,
// and leases by priority that go back to a pool.
// Threads: any. A part of the runtime.
#pragma once
#include <memory>

#include "runtime/clock/stream_clock.h"
#include "weir/stream.h"

namespace weir::streams {

class stream_pool {
 public:
  explicit stream_pool(runtime::impl&);
  ~stream_pool();  // Blocks: until the work of its streams is done, but for lost devices
  // Made and the device opened on first use. Throws: device_lost, driver_error
  clock::timeline& default_line(int device, source_location);
  // Nobody else has it until it is given back. Throws: device_lost, driver_error
  clock::timeline& lease(int device, priority, source_location);
  void give_back(clock::timeline&) noexcept;
  driver::driver& machine() noexcept { return runtime_.machine(); }

 private:
  struct leased {
    clock::timeline* line;
    int device;
    priority at;
    bool out;  // somebody has it
  };
  clock::timeline& make(int device, driver::stream_kind, priority, source_location);

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  std::unique_ptr<base::atomic<clock::timeline*>[]> defaults_;
  base::guarded<std::vector<clock::timeline*>> made_;
  base::guarded<std::vector<leased>> leases_;  // the one idle longest first: its work is the likeliest to be done
};

}  // namespace weir::streams
