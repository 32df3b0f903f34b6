// The conformance suite's kernels.
// Threads: any.
#include "tests/conformance/kernels.h"

#ifdef __CUDACC__
#include "runtime/driver/cuda/symbols.h"

namespace weir::conformance {
namespace {

__global__ void append(device_log* log, std::uint32_t x) {
  std::uint32_t const i = atomicAdd_system(&log->count, 1u);
  if (i < device_log::capacity)
    log->at[i] = x;
  __threadfence_system();
}
__global__ void store(std::uint32_t* to, std::uint32_t value) {
  *to = value;
}
__global__ void copy_word(std::uint32_t* to, std::uint32_t const* from) {
  *to = *from;
}
__global__ void fill(std::uint32_t* to, std::uint32_t first, std::size_t count) {
  std::size_t const step = std::size_t(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += step)
    to[i] = first + static_cast<std::uint32_t>(i);
}
__global__ void crash(std::uint32_t volatile* nowhere) {
  *nowhere = 1;
}
__global__ void spin(long long clocks) {
  long long const start = clock64();
  while (clock64() - start < clocks) {}
}
int said() {
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_append(CUstream_st* s, device_log* log, std::uint32_t x) {
  append<<<1, 1, 0, s>>>(log, x);
  return said();
}
int launch_store(CUstream_st* s, std::uint32_t* to, std::uint32_t value) {
  store<<<1, 1, 0, s>>>(to, value);
  return said();
}
int launch_copy_word(CUstream_st* s, std::uint32_t* to, std::uint32_t const* from) {
  copy_word<<<1, 1, 0, s>>>(to, from);
  return said();
}
int launch_fill(CUstream_st* s, std::uint32_t* to, std::uint32_t first, std::size_t count) {
  fill<<<128, 256, 0, s>>>(to, first, count);
  return said();
}
int launch_crash(CUstream_st* s) {
  crash<<<1, 1, 0, s>>>(reinterpret_cast<std::uint32_t*>(64));
  return said();
}
int launch_spin(CUstream_st* s, long long clocks) {
  spin<<<1, 1, 0, s>>>(clocks);
  return said();
}
int query_event(CUevent_st* e) {
  cudaError_t const is = cudaEventQuery(e);
  cudaGetLastError();
  return static_cast<int>(is);
}
int current_device() {
  auto const* const cu = driver::cuda::load().api;
  CUcontext current = nullptr;
  CUdevice device = -1;
  if (!cu || cu->cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current || cu->cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return -1;
  return static_cast<int>(device);
}
int load_kernels() {
  cudaFuncAttributes about;
  void const* const all[] = {reinterpret_cast<void const*>(append),    reinterpret_cast<void const*>(store),
                             reinterpret_cast<void const*>(copy_word), reinterpret_cast<void const*>(fill),
                             reinterpret_cast<void const*>(crash),     reinterpret_cast<void const*>(spin)};
  for (void const* kernel : all) {
    if (cudaError_t const e = cudaFuncGetAttributes(&about, kernel))
      return static_cast<int>(e);
  }
  return 0;
}

}  // namespace weir::conformance
#else
namespace weir::conformance {
int launch_append(CUstream_st*, device_log*, std::uint32_t) {
  return -1;
}
int launch_store(CUstream_st*, std::uint32_t*, std::uint32_t) {
  return -1;
}
int launch_copy_word(CUstream_st*, std::uint32_t*, std::uint32_t const*) {
  return -1;
}
int launch_fill(CUstream_st*, std::uint32_t*, std::uint32_t, std::size_t) {
  return -1;
}
int launch_crash(CUstream_st*) {
  return -1;
}
int launch_spin(CUstream_st*, long long) {
  return -1;
}
int query_event(CUevent_st*) {
  return -1;
}
int current_device() {
  return -1;
}
int load_kernels() {
  return -1;
}
}  // namespace weir::conformance
#endif
