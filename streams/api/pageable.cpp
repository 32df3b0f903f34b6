// Pageable host memory of buffers and tensors.
// Threads: any.
#include "streams/api/pageable.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "runtime/base/os.h"
#include "runtime/base/round_up.h"
#include "runtime/memory/device/shortage.h"

namespace weir::streams {

void* allocate_pageable(runtime::impl* of, std::string_view operation, size_t bytes, size_t alignment,
                        source_location at) {
  if (alignment & (alignment - 1))
    throw invalid_use(std::string(operation), "alignment of " + std::to_string(alignment) + " B",
                      "Ask for a power of two, or weir::default_alignment", at, error_id{199});
  if (alignment > 2_MiB)
    throw invalid_use(std::string(operation), "alignment of " + std::to_string(alignment) + " B",
                      "Ask for at most 2 MiB", at, error_id{200});
  size_t const align = std::max<size_t>(alignment, 64);
  // Neither the rounding below nor the C library's own may wrap.
  bool const can_be_rounded = bytes <= static_cast<size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - align - 4096;
  return memory::find_or_run_out(
      {of, operation, at},
      [&]() -> void* {
        return can_be_rounded ? std::aligned_alloc(align, std::max(align, base::round_up(bytes, align))) : nullptr;
      },
      [&] {
        memory_report r{};
        r.on = cpu;
        r.capacity = os::memory_of_host();
        r.requested = r.rounded = bytes;
        r.cause = bytes > r.capacity ? memory_cause::too_large : memory_cause::host;
        return r;
      },
      [] {});
}

}  // namespace weir::streams
