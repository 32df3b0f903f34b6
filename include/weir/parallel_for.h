// weir/parallel_for.h: one loop body for real and simulated GPUs. A file compiled by nvcc gets a kernel and a
// host loop. A file compiled by the host compiler gets the loop only, and on a real GPU throws not_supported.
// In CMake, weir_kernels(target file.cu…) picks the compiler.
// Threads: any.
//
// The body is a functor, or a lambda marked WEIR_HOST_DEVICE. Rules of nvcc 13.0 for such a lambda; each
// violation is a compile error:
//   captures   by value, by name or [=]; no init-capture ([x = e]), nothing by reference, no element of a
//              parameter pack, no variable of a type local to a function or private to a class, no variable
//              first mentioned inside `if constexpr`;
//   itself     no `auto` parameter; not `mutable`, because f(i) is a const call;
//   around it  a named function whose address can be taken: no constructor, no private or protected member
//              function (a TEST_F's or TEST_P's body is one), no function with a deduced return type, no
//              template with an unnamed parameter, no generic lambda, no other WEIR_HOST_DEVICE lambda.
//              An enclosing lambda must itself be in a function.
// For a functor only one rule holds: its type is not local to a function. A lambda that captures [this]
// compiles, but on a GPU dereferences a host pointer.
#pragma once
#include <type_traits>

#include "weir/launch.h"

namespace weir WEIR_API {
namespace detail {

[[noreturn]] void no_device_code(source_location);                       // this file was compiled without nvcc
void check_native_launch(stream_ref, int native_code, source_location);  // 0: ok. Throws: device_lost, driver_error

// The body is a local by value: the compiler then knows that no store of the loop changes the body, and
// vectorizes the blocks of fixed length at -O2.
template <class F>
void loop_on_host(size_t n, F f) {
  constexpr size_t block = 64;
  size_t i = 0;
  for (; n - i >= block; i += block) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (size_t j = 0; j < block; ++j)
      f(i + j);
  }
  for (; i < n; ++i)
    f(i);
}

// A body is copied to the GPU byte by byte. nvcc's host pass sees a wrapper in place of a lambda marked
// WEIR_HOST_DEVICE; its device pass sees the lambda itself.
template <class F>
inline constexpr bool goes_as_bytes = std::is_trivially_copy_constructible_v<F>&& std::is_trivially_destructible_v<F>;
#if defined(__NVCC__) && !defined(__CUDA_ARCH__)
template <class F>
inline constexpr bool may_be_a_body = goes_as_bytes<F> || __nv_is_extended_host_device_lambda_closure_type(F);
#else
template <class F>
inline constexpr bool may_be_a_body = goes_as_bytes<F>;
#endif

// The two compilers generate different code from one template, so their names must differ within one program.
#if defined(__CUDACC__)
inline namespace with_kernels {
template <class F>
__global__ void for_each_index(size_t n, F f) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    f(i);
}
template <class F>
void loop_on_gpu(stream_ref s, CUstream_st* native, size_t n, F f, source_location at) {
  if (n == 0)
    return;
  size_t const blocks = (n + 255) / 256;
  void* arguments[] = {&n, &f};
  check_native_launch(
      s,
      cudaLaunchKernel(reinterpret_cast<void const*>(&for_each_index<F>),
                       dim3(unsigned(blocks < 65535 ? blocks : 65535)), dim3(256), arguments, 0, native),
      at);
}
}  // namespace with_kernels
#else
inline namespace without_kernels {
template <class F>
void loop_on_gpu(stream_ref, CUstream_st*, size_t, F const&, source_location at) {
  no_device_code(at);
}
}  // namespace without_kernels
#endif
}  // namespace detail

#if defined(__CUDACC__)
inline namespace with_kernels {
#else
inline namespace without_kernels {
#endif
// Runs f(size_t i) for every i < n, on the stream.
// Requires: iterations are independent; f is trivially copyable (capture data<T>(), not a vector, tensor or
// buffer) and its operator() is WEIR_HOST_DEVICE; f touches only memory that `uses` declares. An exception
// from f ends the process, as in launch.
// Throws: as launch; not_supported on a GPU if the file was compiled without nvcc.
template <class F>
void parallel_for(stream_ref s, size_t n, memory_uses u, F f, source_location at = source_location::current()) {
  static_assert(detail::may_be_a_body<F>,
                "parallel_for: this body owns something (a std::vector, std::string, weir::tensor, weir::buffer, ...): "
                "a GPU gets its bytes alone and would read "
                "memory of the host. Capture plain values and pointers instead: auto* x = tensor.data<float>(); [x] "
                "WEIR_HOST_DEVICE(size_t i) { ... }");
  launch(
      s, u, [&](CUstream_st* native) { detail::loop_on_gpu(s, native, n, f, at); },
      [n, f]() { detail::loop_on_host(n, f); }, at);
}
}

}  // namespace weir
