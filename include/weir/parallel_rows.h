// weir/parallel_rows.h: parallel_for over rows whose elements a few threads share: sums, norms, softmax.
// A file compiled by the host compiler gets the loop only, as with weir/parallel_for.h.
// Threads: any.
#pragma once
#include <cmath>

#include "weir/parallel_for.h"

namespace weir WEIR_API {

namespace detail {
// In either order: NaN if one is NaN.
WEIR_HOST_DEVICE inline float larger(float a, float b) {
  return a > b || a != a ? a : b;
}
}  // namespace detail

// The threads that share a row: a warp of a GPU, or the one thread of a simulated device. This one takes the elements
// lane(), lane() + size(), … Sums differ by rounding from machine to machine.
// Requires: all threads of the row make each of the calls that return what all have.
struct row_team {
  // Returns: this thread's number in the row, from 0.
  WEIR_HOST_DEVICE static int lane() {
#if defined(__CUDA_ARCH__)
    return int(threadIdx.x);
#else
    return 0;
#endif
  }
  // Returns: how many threads share a row.
  WEIR_HOST_DEVICE static constexpr int size() {
#if defined(__CUDA_ARCH__)
    return 32;
#else
    return 1;
#endif
  }
  // A thread sees what others wrote to the row only behind sync().
  WEIR_HOST_DEVICE void sync() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
  // Returns: the sum of all threads' numbers; NaN if one is NaN.
  WEIR_HOST_DEVICE float sum(float mine) const {
    return joined(mine, [](float a, float b) { return a + b; });
  }
  // Returns: the largest of all threads' numbers; NaN if one is NaN.
  WEIR_HOST_DEVICE float max(float mine) const {
    return joined(mine, [](float a, float b) { return detail::larger(a, b); });
  }
  // Calls f(int element) for this thread's elements of n.
  template <class F>
  WEIR_HOST_DEVICE void each(int n, F f) const {
    for (int i = lane(); i < n; i += size())
      f(i);
  }
  // Returns: the sum of f(int element) over all n elements; of none 0.
  template <class F>
  WEIR_HOST_DEVICE float sum_of(int n, F f) const {
    float mine = 0;
    for (int i = lane(); i < n; i += size())
      mine += f(i);
    return sum(mine);
  }
  // Returns: the largest f(int element) of all n elements; of none -infinity.
  template <class F>
  WEIR_HOST_DEVICE float max_of(int n, F f) const {
    float mine = -INFINITY;
    for (int i = lane(); i < n; i += size())
      mine = detail::larger(f(i), mine);
    return max(mine);
  }
  // Replaces the first `end` of n numbers x by the softmax of scale * x, and the others by 0. T: to and from float.
  // Returns: the logarithm of the sum that it divides by. Requires: end > 0
  template <class T>
  WEIR_HOST_DEVICE float softmax(T* row, int n, int end, float scale = 1) const {
    float const most = max_of(end, [=](int i) { return static_cast<float>(row[i]); });
    float const total = sum_of(end, [=](int i) {
      float const e = expf(scale * (row[i] - most));
      row[i] = e;
      return e;
    });
    each(n, [=, part = 1 / total](int i) { row[i] = i < end ? row[i] * part : 0.f; });
    return scale * most + logf(total);
  }
  // Replaces n gradients by the softmax p of that scale by those by what it is of. T: as above
  template <class T>
  WEIR_HOST_DEVICE void softmax_gradient(T* d, T const* p, int n, float scale = 1) const {
    float const along = sum_of(n, [=](int i) { return d[i] * p[i]; });
    each(n, [=](int i) { d[i] = p[i] * (d[i] - along) * scale; });
  }
  // out = (in - mean) / deviation of n numbers. Returns: 1 / deviation. added: to the variance. T: as above
  template <class T>
  WEIR_HOST_DEVICE float normalize(T* out, float const* in, int n, float added = 1e-5f) const {
    float const mean = sum_of(n, [=](int i) { return in[i]; }) / n;
    float const variance = sum_of(n, [=](int i) { return (in[i] - mean) * (in[i] - mean); }) / n;
    float const scale = 1 / sqrtf(variance + added);
    each(n, [=](int i) { out[i] = (in[i] - mean) * scale; });
    return scale;
  }

 private:
  template <class Join>
  WEIR_HOST_DEVICE static float joined(float mine, Join join) {
#if defined(__CUDA_ARCH__)
    for (int far = 16; far > 0; far /= 2)
      mine = join(mine, __shfl_xor_sync(~0u, mine, far));
#else
    static_cast<void>(join);
#endif
    return mine;
  }
};

#if defined(__CUDACC__)
namespace detail {
inline namespace with_kernels {
template <class F>
__global__ void for_each_row(size_t rows, F f) {
  for (size_t r = blockIdx.x * size_t(blockDim.y) + threadIdx.y; r < rows; r += size_t(gridDim.x) * blockDim.y)
    f(r, row_team());
}
template <class F>
void rows_on_gpu(stream_ref s, CUstream_st* native, size_t rows, F f, source_location at) {
  if (rows == 0)
    return;
  size_t const blocks = (rows + 7) / 8;
  void* arguments[] = {&rows, &f};
  check_native_launch(
      s,
      cudaLaunchKernel(reinterpret_cast<void const*>(&for_each_row<F>), dim3(unsigned(blocks < 65535 ? blocks : 65535)),
                       dim3(32, 8), arguments, 0, native),
      at);
}
}  // namespace with_kernels
}  // namespace detail
inline namespace with_kernels {
#else
namespace detail {
inline namespace without_kernels {
template <class F>
void rows_on_gpu(stream_ref, CUstream_st*, size_t, F const&, source_location at) {
  no_device_code(at);
}
}  // namespace without_kernels
}  // namespace detail
inline namespace without_kernels {
#endif
// Runs f(size_t row, row_team) for every row < rows, on the stream.
// Requires and Throws: as parallel_for. Rows are independent.
template <class F>
void parallel_for_rows(stream_ref s, size_t rows, memory_uses u, F f, source_location at = source_location::current()) {
  static_assert(detail::may_be_a_body<F>, "parallel_for_rows: this body owns something; see parallel_for");
  launch(
      s, u, [&](CUstream_st* native) { detail::rows_on_gpu(s, native, rows, f, at); },
      [rows, f]() {
        for (size_t r = 0; r < rows; ++r)
          f(r, row_team());
      },
      at);
}
}

}  // namespace weir
