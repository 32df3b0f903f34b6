// An internal stream with its clock, leased from the program's stream pool: a stream that cannot be returned
// to the driver stays in the pool.
// Threads: any. The destructor blocks until the stream's work is done.
// Requires: the owning part requests the pool at construction, and so ends before it.
#pragma once
#include <string_view>

#include "runtime/clock/stream_clock.h"
#include "runtime/driver/race_control.h"
#include "streams/stream/stream_pool.h"

namespace weir::peer {

class internal_stream {
 public:
  internal_stream(runtime::impl& r, int device, std::string_view operation, source_location where)
      : pool_(r.part<streams::stream_pool>()) {
    r.open(device, operation, where);
    line_ = &pool_.lease(device, driver::stream_kind::independent, priority::normal, where);
    if (auto* const checker = r.machine().checker())
      checker->is_weirs_own(device, line_->handle());
  }
  ~internal_stream() {
    static_cast<void>(line_->synchronize());  // a lost device answers at once
    pool_.give_back(*line_);
  }
  internal_stream(internal_stream const&) = delete;
  internal_stream& operator=(internal_stream const&) = delete;
  clock::stream_clock& stream() const noexcept { return *line_; }

 private:
  streams::stream_pool& pool_;
  clock::stream_clock* line_ = nullptr;
};

}  // namespace weir::peer
