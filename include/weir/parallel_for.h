// weir/parallel_for.h: one body for both drivers. In a file that nvcc compiles it is a kernel and a loop; in a file of the
// host compiler only the loop, and a real GPU answers not_supported. CMake: weir_kernels(TARGET file.cu…) picks the compiler.
#pragma once
#include "weir/launch.h"
#if defined(__CUDACC__)
#define WEIR_FN __host__ __device__
#else
#define WEIR_FN
#endif

namespace weir {
namespace detail {
[[noreturn]] void no_device_code(here);
#if defined(__CUDACC__)
template <class F> __global__ void for_each_index(size_t n, F f) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) f(i);
}
#endif
}
// f(size_t i) for every i < n. Requires: iterations independent.
template <class F>
void parallel_for(stream_ref s, size_t n, std::initializer_list<use> uses, F f, here at = here::current()) {
  launch(s, uses,
    [&](CUstream_st* native) {
#if defined(__CUDACC__)
      unsigned const blocks = unsigned((n + 255) / 256 < 65535 ? (n + 255) / 256 : 65535);
      if (n) detail::for_each_index<<<blocks, 256, 0, native>>>(n, f);
#else
      (void)native; detail::no_device_code(at);
#endif
    },
    [=]() mutable { for (size_t i = 0; i < n; ++i) f(i); }, at);
}
}
