// Kernels of gradient_buckets, for GPUs and simulated devices.
// Threads: any.
#include "peer/collective/bucket_kernels.h"

#include "weir/half.h"

namespace weir::peer {
namespace {

template <class To, class From>
struct casting {
  To* out;
  From const* in;
  WEIR_HOST_DEVICE void operator()(size_t i) const { out[i] = To(static_cast<float>(in[i])); }
};

template <class To, class From>
void cast_all(stream_ref s, device_span out, device_span in, source_location at) {
  casting<To, From> const body{static_cast<To*>(out.data), static_cast<From const*>(in.data)};
  parallel_for(s, static_cast<size_t>(in.count), {writes(out), reads(in)}, body, at);
}

}  // namespace

void cast(stream_ref s, device_span out, device_span in, source_location at) {
  if (in.count == 0)
    return;
  bool const is_short = out.dtype == float16;
  if (in.dtype == float32)
    return is_short ? cast_all<float16_t, float>(s, out, in, at) : cast_all<bfloat16_t, float>(s, out, in, at);
  return is_short ? cast_all<float16_t, double>(s, out, in, at) : cast_all<bfloat16_t, double>(s, out, in, at);
}

}  // namespace weir::peer
