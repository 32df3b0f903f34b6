// Kernels of gradient_buckets. Each declares its memory as a launch does.
// Threads: any.
#pragma once
#include "weir/collective.h"

namespace weir::peer {

// Of float32 or float64 to float16 or bfloat16. Requires: equal counts. Throws: as launch
void cast(stream_ref, device_span out, device_span in, source_location);

// The norm of all ranges of some floating-point types, in an order of sums that their counts alone give.
struct norm_kernels {
  double* sums;      // norm_sums(most elements of a range)
  std::int64_t all;  // that number
  float* norm;       // the result
  double* factor;    // that brings it to `most`; 1 if it is no more, or is not finite
  // In turn, on one stream. Throw: as launch
  void add(stream_ref, device_span range, bool first, source_location) const;
  void finish(stream_ref, double most, source_location) const;  // few(), then last()
  void few(stream_ref, source_location) const;                  // leaves few_sums, or all if they are fewer
  void last(stream_ref, double most, source_location) const;
  void scale(stream_ref, device_span range, source_location) const;
};
inline constexpr std::int64_t few_sums = 256;
std::int64_t norm_sums(std::int64_t most_elements) noexcept;

}  // namespace weir::peer
