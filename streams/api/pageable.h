// Pageable host memory of buffers and tensors.
// Threads: any.
#pragma once
#include "runtime/core/parts.h"

namespace weir::streams {

// Aligned to 64 B at least; alignment 0: to that. Free it with std::free. of: null: no runtime, which asks no callback
// Throws: invalid_use (alignment no power of two or above 2 MiB), out_of_memory
void* allocate_pageable(runtime::impl* of, std::string_view operation, size_t bytes, size_t alignment, source_location);

}  // namespace weir::streams
