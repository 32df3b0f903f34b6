// One stream's copies by the engines of its device: enqueued, nothing more.
// Who may be copied where is decided above.
// Threads: any. None of these waits for device work.
#pragma once
#include <string>

#include "runtime/clock/stream_clock.h"

namespace weir::streams {

// Between pinned memory and the stream's device, either way, or within the device.
void enqueue_copy(clock::timeline&, void* dst, void const* src, std::size_t bytes, source_location);
// The same for who has more to do whatever the answer is. Returns: why it was refused
driver::status try_copy(clock::timeline&, void* dst, void const* src, std::size_t bytes, source_location const&);
[[noreturn]] void throw_refused_copy(driver::status, clock::timeline const&, void const* dst, void const* src,
                                     std::size_t bytes, source_location);
// Between two devices; the driver finds its way.
void enqueue_peer_copy(clock::timeline&, void* dst, int dst_device, void const* src, int src_device, std::size_t bytes,
                       source_location);
// The same for who has others to see to first. Returns: why it was refused.
driver::status try_peer_copy(clock::timeline&, void* dst, int dst_device, void const* src, int src_device,
                             std::size_t bytes, source_location) noexcept;
void enqueue_fill(clock::timeline&, void* dst, std::byte value, std::size_t bytes, source_location);
// Those that return nothing throw: device_lost, driver_error; nothing is enqueued then.

// For messages: "0x7f1000 (4096 B)".
std::string range_text(void const*, std::size_t bytes);
// ": gpu:1", which of two devices is lost, for an error about both;
// asks the driver. Empty: neither, or it does not say.
std::string which_is_lost(runtime::impl&, driver::status why, int one, int other);

}  // namespace weir::streams
