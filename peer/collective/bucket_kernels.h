// Kernels of gradient_buckets. Each declares its memory as a launch does.
// Threads: any.
#pragma once
#include "weir/collective.h"

namespace weir::peer {

// Of float32 or float64 to float16 or bfloat16. Requires: equal counts. Throws: as launch
void cast(stream_ref, device_span out, device_span in, source_location);

}  // namespace weir::peer
