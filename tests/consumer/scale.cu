// One loop body for both kinds of device: nvcc makes it a kernel, the host compiler a loop.
// Threads: as weir::parallel_for.
#include "scale.h"

#include <weir/parallel_for.h>

namespace {
struct scaled {
  float* y;
  float const* x;
  float by;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { y[i] = by * x[i]; }
};
}  // namespace

void scale(weir::stream_ref s, float* y, float const* x, std::size_t n, float by) {
  weir::parallel_for(s, n, {weir::reads(x, n * sizeof *x), weir::writes(y, n * sizeof *y)}, scaled{y, x, by});
}
