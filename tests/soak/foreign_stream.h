// A stream that the program makes without weir, by the driver, as code that gets streams by handle has it.
// Threads: one.
#pragma once
#include <stdexcept>

#include "runtime/driver/driver.h"
#include "weir/stream.h"

namespace weir::soak {

class foreign_stream {
 public:
  foreign_stream(driver::driver& machine, int device, stream_flags flags = stream_flags::non_blocking)
      : machine_(machine), device_(device) {
    auto const kind =
        flags == stream_flags::blocking ? driver::stream_kind::blocking : driver::stream_kind::independent;
    auto const made = machine.create_stream(device, kind, 0);
    if (!made.ok())
      throw std::runtime_error("a stream of the program could not be made");
    handle_ = made.value;
  }
  ~foreign_stream() { (void)machine_.destroy_stream(device_, handle_); }  // its work still runs
  foreign_stream(foreign_stream const&) = delete;
  CUstream_st* handle() const noexcept { return reinterpret_cast<CUstream_st*>(handle_); }

 private:
  driver::driver& machine_;
  int const device_;
  driver::stream_handle handle_ = driver::stream_handle::none;
};

}  // namespace weir::soak
