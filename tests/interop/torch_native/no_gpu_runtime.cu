// A CUDA runtime without a device, for the calls of PyTorch's libraries: two devices of 1 GiB whose memory is the
// host's, as weir's simulated devices are.
// Threads: any.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

namespace {
thread_local int current = 0;
cudaError_t move(void* to, void const* from, std::size_t bytes) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
}  // namespace

extern "C" {
cudaError_t cudaGetDeviceCount(int* n) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  current = d;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
char const* cudaGetErrorString(cudaError_t) {
  return "an error";
}
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t n, cudaMemcpyKind) {
  return move(to, from, n);
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t n, cudaMemcpyKind, cudaStream_t) {
  return move(to, from, n);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, void const* from, int, std::size_t n, cudaStream_t) {
  return move(to, from, n);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* is) {
  *is = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
}
