// The thread's current runtime, device and streams; and the way from public handles to what stands behind them.
// Threads: each sees its own current device and stream.
#pragma once
#include "runtime/clock/timeline.h"
#include "weir/stream.h"

namespace weir::streams {

runtime::impl& current_runtime();                                     // this thread's runtime_guard, else the process default
// The ordinal a device means for this thread. Throws: invalid_use (cpu where a gpu is needed; no such device: names how many there are)
int resolve(device, runtime::impl&, std::string_view operation, here);

clock::timeline& line_of(stream_ref) noexcept;
stream_ref ref_of(clock::timeline&) noexcept;
clock::timeline& current_line(runtime::impl&, int device);            // the thread's current stream of that device
clock::timeline& current_line(runtime::impl&);                        // of the current device
weir::stamp public_stamp(clock::stamp) noexcept;
clock::stamp inner_stamp(weir::stamp) noexcept;

}  // namespace weir::streams
