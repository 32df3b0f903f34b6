// weir/stream_of.h: the stream behind a CUDA handle, for adaptors of other libraries (cuda_mr.h, thrust.h).
// Threads: any.
#pragma once
#include "weir/stream.h"

namespace weir::detail {

// The stream of the calling thread's runtime that has this handle on this device. Null and cudaStreamLegacy
// name CUDA's legacy stream, cudaStreamPerThread the caller's own. The first call registers another handle as
// external_stream does; it stays registered until the runtime ends.
// Requires: the program does not destroy the stream before its last use through weir.
// Throws: as external_stream
WEIR_API stream_ref stream_of(device, CUstream_st*, source_location = source_location::current());

}  // namespace weir::detail
