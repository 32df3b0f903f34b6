// Kernels of gradient_buckets, for GPUs and simulated devices.
// Threads: any.
#include "peer/collective/bucket_kernels.h"

#include <algorithm>
#include <cmath>

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

// Calls f with a null pointer of the C++ type. Requires: a floating-point type
template <class F>
void with_type(dtype type, F f) {
  switch (type) {
    case float64: return f(static_cast<double*>(nullptr));
    case float16: return f(static_cast<float16_t*>(nullptr));
    case bfloat16: return f(static_cast<bfloat16_t*>(nullptr));
    default: return f(static_cast<float*>(nullptr));
  }
}

constexpr std::int64_t most_sums = 1 << 16;

template <class T>
struct squares {
  double* sums;
  T const* in;
  std::int64_t n, all;
  bool first;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    double total = first ? 0 : sums[i];
    for (std::int64_t k = static_cast<std::int64_t>(i); k < n; k += all) {
      double const x = static_cast<double>(in[k]);
      total += x * x;
    }
    sums[i] = total;
  }
};

struct fewer_sums {  // thread i writes its own first element
  double* sums;
  std::int64_t all;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    double total = 0;
    for (std::int64_t k = static_cast<std::int64_t>(i); k < all; k += few_sums)
      total += sums[k];
    sums[i] = total;
  }
};

struct last_norm {
  norm_kernels to;
  double most;
  WEIR_HOST_DEVICE void operator()(size_t) const {
    double total = 0;
    for (std::int64_t k = 0; k < to.all && k < few_sums; ++k)
      total += to.sums[k];
    double const norm = ::sqrt(total);
    float const told = static_cast<float>(norm);
    *to.norm = told;
    // A number minus itself is 0 unless it is infinite or none.
    *to.factor = told - told == 0 && norm > most ? most / norm : 1;
  }
};

template <class T>
struct scaling {
  T* data;
  double const* factor;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    if (*factor == 1)
      return;
    double const x = static_cast<double>(data[i]) * *factor;
    if constexpr (sizeof(T) == sizeof(double))
      data[i] = x;
    else
      data[i] = T(static_cast<float>(x));
  }
};

}  // namespace

void cast(stream_ref s, device_span out, device_span in, source_location at) {
  if (in.count == 0)
    return;
  bool const is_short = out.dtype == float16;
  if (in.dtype == float32)
    return is_short ? cast_all<float16_t, float>(s, out, in, at) : cast_all<bfloat16_t, float>(s, out, in, at);
  return is_short ? cast_all<float16_t, double>(s, out, in, at) : cast_all<bfloat16_t, double>(s, out, in, at);
}

std::int64_t norm_sums(std::int64_t most_elements) noexcept {
  return std::clamp<std::int64_t>(most_elements, 1, most_sums);
}

void norm_kernels::add(stream_ref s, device_span range, bool first, source_location at) const {
  device_span const mine{sums, all, float64};
  with_type(range.dtype, [&]<class T>(T*) {
    squares<T> const body{sums, static_cast<T const*>(range.data), range.count, all, first};
    parallel_for(s, static_cast<size_t>(all), {first ? writes(mine) : updates(mine), reads(range)}, body, at);
  });
}

void norm_kernels::finish(stream_ref s, double most, source_location at) const {
  few(s, at);
  last(s, most, at);
}

void norm_kernels::few(stream_ref s, source_location at) const {
  memory_use const mine = updates(device_span{sums, all, float64});
  parallel_for(s, static_cast<size_t>(std::min(all, few_sums)), {mine}, fewer_sums{sums, all}, at);
}

void norm_kernels::last(stream_ref s, double most, source_location at) const {
  memory_use const result[] = {reads(device_span{sums, std::min(all, few_sums), float64}), writes(norm, sizeof *norm),
                               writes(factor, sizeof *factor)};
  parallel_for(s, 1, result, last_norm{*this, most}, at);
}

void norm_kernels::scale(stream_ref s, device_span range, source_location at) const {
  with_type(range.dtype, [&]<class T>(T*) {
    parallel_for(s, static_cast<size_t>(range.count), {updates(range), reads(factor, sizeof *factor)},
                 scaling<T>{static_cast<T*>(range.data), factor}, at);
  });
}

}  // namespace weir::peer
