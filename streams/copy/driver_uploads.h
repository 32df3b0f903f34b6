// Copies of pageable memory to a device by the driver's own call, while the driver has room to stage them.
// Threads: any.
#pragma once
#include <cstddef>
#include <deque>

#include "runtime/clock/stream_clock.h"
#include "streams/copy/room_in_use.h"

namespace weir::streams {

// Asks the driver. False: work is pending, or the driver did not tell.
bool is_idle(clock::stream_clock&);

class driver_uploads {  // of one runtime
 public:
  explicit driver_uploads(runtime::impl&);
  // Needs no slot and no second copy. Returns: false, if the call would wait for the stream's earlier work: nothing was
  // enqueued. Throws: device_lost, driver_error
  bool begin(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, source_location);

 private:
  bool has_nothing_before(clock::stream_clock&);

  runtime::impl& owner_;
  driver::upload_room const room_;
  std::deque<room_in_use> in_use_;  // of each device: bytes that the driver stages
};

}  // namespace weir::streams
