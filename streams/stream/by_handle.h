// Streams that callers name by CUDA's handle: from a C interface, or another library's allocator hook.
// Threads: any.
#pragma once
#include "runtime/clock/stream_clock.h"
#include "weir/stream.h"

namespace weir::streams {

// A registered stream that this thread has named before, by an explicit device of its current runtime. None: ask
// borrow_stream. No driver call, no lock.
// Throws: as runtime::current()
stream_ref const* known_by_handle(int device, CUstream_st*, source_location const&);

// Adopts the handle and registers it. Throws: as external_stream
clock::stream_clock& register_handle(runtime::impl&, int device, CUstream_st*, source_location);
// Ends one registration of it; the last one ends its use. Throws: invalid_use (not registered)
void unregister_handle(runtime::impl&, int device, CUstream_st*, source_location);

}  // namespace weir::streams
