// weir/stream_of.h: what adaptors of other libraries ask of weir: the stream behind a CUDA handle, and frees
// that name one (cuda_mr.h, caching_device_allocator.h).
// Threads: any.
#pragma once
#include "weir/stream.h"

namespace weir::detail {

// The device that is current in CUDA (cudaSetDevice), on simulated devices weir's own. Throws: driver_error
WEIR_API device device_in_cuda(source_location = source_location::current());
// That device, or for gpu the one that is current in CUDA. If none is, it becomes current, as after cudaMalloc.
// Throws: driver_error
WEIR_API device device_of_call(device, source_location = source_location::current());
// The stream with this handle in the calling thread's runtime, as borrow_stream finds it: weir's own, a
// registered one, or a stream that exists for certain only during the call. Named without a device, it is of
// its own device, and null, cudaStreamLegacy and cudaStreamPerThread are those of the device that is current in
// CUDA. A captured stream that weir has not seen outside of a capture counts as one of that device.
// Throws: invalid_use (a stream of another device, no stream), device_lost, driver_error
WEIR_API stream_ref stream_of(CUstream_st*, source_location = source_location::current());
// As borrow_stream. gpu: none is named. After both a device is current in CUDA.
WEIR_API stream_ref stream_of(device, CUstream_st*, source_location = source_location::current());

// Frees a block that `last_use` may still use, a stream of whatever device; null and its like are of `device`.
// If CUDA refuses the handle, its stream has ended: the host waits for the work of all devices.
// Null as a block does nothing. Throws: as deallocate
// Blocks: only if the stream has ended. In a capture that is refused (driver_error), and the block stays.
WEIR_API void deallocate_on(device, CUstream_st* last_use, void*, source_location = source_location::current());
// Frees a block and names the stream that it was allocated on, so that its memory soon serves others.
// Requires: a borrowed stream exists. Throws: as deallocate
WEIR_API void deallocate_at_home(void*, source_location = source_location::current());

}  // namespace weir::detail
