// Copies and fills, and whether the host waits for them.
// Threads: any.
#include "runtime/driver/cuda/symbols.h"
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
namespace weir::driver::cuda {
namespace {

bool is_pageable(void const* host) {
  unsigned kind = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* const to = &kind;
  void* answers[] = {to};
  CUresult const is = load().api->cuPointerGetAttributes(1, &which, answers, reinterpret_cast<CUdeviceptr>(host));
  return is != CUDA_SUCCESS || kind == 0;
}

struct copy_parts {
  CUstream stream;
  address to, from;
  std::size_t bytes;
  bool waits;
};
void tell_copy(seen_call const& call, copy_parts const& c) {
  if (call.is_captured(c.stream))
    return;
  int const device = call.device_of(c.stream);
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.copied(device, call.handle(c.stream), c.to, c.from, c.bytes, c.waits, site); });
}

// Pageable memory to a device: the call waits for the stream's earlier work, and returns when the source has been read:
// the copy may still be under way. From a device to pageable memory it returns when the bytes are there.
void tell_earlier_work_done(seen_call const& call) {
  int const device = call.device();
  call.each([&](seen_calls& to) { to.stream_done(device, call.default_stream()); });
}
void tell_to_device(seen_call const& call) {
  auto const& p = call.given<cuMemcpyHtoD_v2_params>();
  tell_earlier_work_done(call);
  tell_copy(call, {nullptr, number_of(p.dstDevice), number_of(p.srcHost), p.ByteCount, !is_pageable(p.srcHost)});
}
void tell_to_device_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyHtoDAsync_v2_params>();
  tell_copy(call, {p.hStream, number_of(p.dstDevice), number_of(p.srcHost), p.ByteCount, false});
}
void tell_to_host(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoH_v2_params>();
  tell_copy(call, {nullptr, number_of(p.dstHost), number_of(p.srcDevice), p.ByteCount, true});
}
void tell_to_host_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoHAsync_v2_params>();
  tell_copy(call, {p.hStream, number_of(p.dstHost), number_of(p.srcDevice), p.ByteCount, is_pageable(p.dstHost)});
}
void tell_within_device(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoD_v2_params>();
  tell_copy(call, {nullptr, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, false});
}
void tell_within_device_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoDAsync_v2_params>();
  tell_copy(call, {p.hStream, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, false});
}
bool is_host(CUdeviceptr p) {
  unsigned kind = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* const to = &kind;
  void* answers[] = {to};
  CUresult const is = load().api->cuPointerGetAttributes(1, &which, answers, p);
  return is != CUDA_SUCCESS || kind != CU_MEMORYTYPE_DEVICE;
}
// Within a device the host does not wait.
void tell_any(seen_call const& call) {
  auto const& p = call.given<cuMemcpy_params>();
  bool const waits = is_host(p.dst) || (is_host(p.src) && !is_pageable(reinterpret_cast<void const*>(p.src)));
  if (is_host(p.src))
    tell_earlier_work_done(call);
  tell_copy(call, {nullptr, number_of(p.dst), number_of(p.src), p.ByteCount, waits});
}
void tell_any_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyAsync_params>();
  bool const waits = is_pageable(reinterpret_cast<void const*>(p.dst)) || (is_host(p.dst) && is_host(p.src));
  tell_copy(call, {p.hStream, number_of(p.dst), number_of(p.src), p.ByteCount, waits});
}
// It comes between all earlier and all later work of both devices, as if the host waited.
void tell_peer(seen_call const& call) {
  auto const& p = call.given<cuMemcpyPeer_params>();
  for (CUcontext const c : {p.dstContext, p.srcContext}) {
    int const device = device_of(c);
    call.each([&](seen_calls& to) { to.device_done(device); });
  }
  tell_copy(call, {nullptr, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, true});
}
void tell_peer_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyPeerAsync_params>();
  tell_copy(call, {p.hStream, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, false});
}

// Rows with gaps: which bytes are used is known by the pointers alone.
void tell_rows(seen_call const& call, CUstream stream, check::seen_pointer from, check::seen_pointer to, bool waits) {
  if (call.is_captured(stream))
    return;
  int const device = call.device_of(stream);
  base::site const site = call.site();
  check::seen_pointer const both[] = {from, to};
  seen_calls::stream const on = call.handle(stream);
  call.each([&](seen_calls& told) {
    told.launched(device, on, call.name(), both, site);
    if (waits)
      told.stream_done(device, on);
  });
}
template <class Copy>
check::seen_pointer source_of(Copy const& c) {
  address const at = c.srcMemoryType == CU_MEMORYTYPE_HOST ? number_of(c.srcHost) : number_of(c.srcDevice);
  return {.at = at + c.srcXInBytes + c.srcY * c.srcPitch, .writes = false};
}
template <class Copy>
check::seen_pointer target_of(Copy const& c) {
  address const at = c.dstMemoryType == CU_MEMORYTYPE_HOST ? number_of(c.dstHost) : number_of(c.dstDevice);
  return {.at = at + c.dstXInBytes + c.dstY * c.dstPitch, .writes = true};
}
template <class Parameters>
void tell_rows_now(seen_call const& call) {
  auto const& copy = *call.given<Parameters>().pCopy;
  check::seen_pointer const from = source_of(copy), to = target_of(copy);
  // From pageable memory to a device it may still be under way.
  bool const waits = is_host(to.at) || (is_host(from.at) && !is_pageable(reinterpret_cast<void const*>(from.at)));
  tell_rows(call, nullptr, from, to, waits);
}
template <class Parameters>
void tell_rows_async(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  check::seen_pointer const from = source_of(*p.pCopy), to = target_of(*p.pCopy);
  tell_rows(call, p.hStream, from, to, is_pageable(reinterpret_cast<void const*>(to.at)));
}

// The host waits for a fill of its own memory.
void tell_fill(seen_call const& call, CUstream stream, CUdeviceptr at, std::size_t bytes, bool waits) {
  if (call.is_captured(stream))
    return;
  int const device = call.device_of(stream);
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.filled(device, call.handle(stream), number_of(at), bytes, waits, site); });
}
template <class Parameters, int Size>
void tell_fill_now(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_fill(call, nullptr, p.dstDevice, p.N * Size, is_host(p.dstDevice));
}
template <class Parameters, int Size>
void tell_fill_async(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_fill(call, p.hStream, p.dstDevice, p.N * Size, false);
}
template <class Parameters>
void tell_fill_of_rows(seen_call const& call) {
  check::seen_pointer const to{.at = number_of(call.given<Parameters>().dstDevice)};
  CUstream stream = nullptr;
  if constexpr (requires(Parameters const& p) { p.hStream; })
    stream = call.given<Parameters>().hStream;
  tell_rows(call, stream, to, to, false);
}

void tell_batch(seen_call const& call) {
  call.not_understood("copies in batches");
}
void tell_array(seen_call const& call) {
  call.not_understood("copies from and to CUDA arrays");
}

constexpr watched_call copy_rows[] = {
    WEIR_CALL_OF_STREAM(cuMemcpyHtoD_v2, _ptds, EXIT, tell_to_device),
    WEIR_CALL_OF_STREAM(cuMemcpyHtoDAsync_v2, _ptsz, EXIT, tell_to_device_async),
    WEIR_CALL_OF_STREAM(cuMemcpyDtoH_v2, _ptds, EXIT, tell_to_host),
    WEIR_CALL_OF_STREAM(cuMemcpyDtoHAsync_v2, _ptsz, EXIT, tell_to_host_async),
    WEIR_CALL_OF_STREAM(cuMemcpyDtoD_v2, _ptds, EXIT, tell_within_device),
    WEIR_CALL_OF_STREAM(cuMemcpyDtoDAsync_v2, _ptsz, EXIT, tell_within_device_async),
    WEIR_CALL_OF_STREAM(cuMemcpy, _ptds, EXIT, tell_any),
    WEIR_CALL_OF_STREAM(cuMemcpyAsync, _ptsz, EXIT, tell_any_async),
    WEIR_CALL_OF_STREAM(cuMemcpyPeer, _ptds, EXIT, tell_peer),
    WEIR_CALL_OF_STREAM(cuMemcpyPeerAsync, _ptsz, EXIT, tell_peer_async),
    WEIR_CALL_OF_STREAM(cuMemcpy2D_v2, _ptds, EXIT, tell_rows_now<cuMemcpy2D_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemcpy2DUnaligned_v2, _ptds, EXIT, tell_rows_now<cuMemcpy2DUnaligned_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemcpy3D_v2, _ptds, EXIT, tell_rows_now<cuMemcpy3D_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemcpy2DAsync_v2, _ptsz, EXIT, tell_rows_async<cuMemcpy2DAsync_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemcpy3DAsync_v2, _ptsz, EXIT, tell_rows_async<cuMemcpy3DAsync_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD8_v2, _ptds, EXIT, (tell_fill_now<cuMemsetD8_v2_params, 1>)),
    WEIR_CALL_OF_STREAM(cuMemsetD16_v2, _ptds, EXIT, (tell_fill_now<cuMemsetD16_v2_params, 2>)),
    WEIR_CALL_OF_STREAM(cuMemsetD32_v2, _ptds, EXIT, (tell_fill_now<cuMemsetD32_v2_params, 4>)),
    WEIR_CALL_OF_STREAM(cuMemsetD8Async, _ptsz, EXIT, (tell_fill_async<cuMemsetD8Async_params, 1>)),
    WEIR_CALL_OF_STREAM(cuMemsetD16Async, _ptsz, EXIT, (tell_fill_async<cuMemsetD16Async_params, 2>)),
    WEIR_CALL_OF_STREAM(cuMemsetD32Async, _ptsz, EXIT, (tell_fill_async<cuMemsetD32Async_params, 4>)),
    WEIR_CALL_OF_STREAM(cuMemsetD2D8_v2, _ptds, EXIT, tell_fill_of_rows<cuMemsetD2D8_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD2D16_v2, _ptds, EXIT, tell_fill_of_rows<cuMemsetD2D16_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD2D32_v2, _ptds, EXIT, tell_fill_of_rows<cuMemsetD2D32_v2_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD2D8Async, _ptsz, EXIT, tell_fill_of_rows<cuMemsetD2D8Async_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD2D16Async, _ptsz, EXIT, tell_fill_of_rows<cuMemsetD2D16Async_params>),
    WEIR_CALL_OF_STREAM(cuMemsetD2D32Async, _ptsz, EXIT, tell_fill_of_rows<cuMemsetD2D32Async_params>),
    WEIR_CALL_OF_STREAM(cuMemcpy3DPeer, _ptds, EXIT, tell_batch),
    WEIR_CALL_OF_STREAM(cuMemcpy3DPeerAsync, _ptsz, EXIT, tell_batch),
    WEIR_CALL_OF_STREAM(cuMemcpyDtoA_v2, _ptds, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyAtoD_v2, _ptds, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyHtoA_v2, _ptds, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyAtoH_v2, _ptds, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyAtoA_v2, _ptds, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyHtoAAsync_v2, _ptsz, EXIT, tell_array),
    WEIR_CALL_OF_STREAM(cuMemcpyAtoHAsync_v2, _ptsz, EXIT, tell_array),
#if CUDA_VERSION >= 12080
    WEIR_CALL_OF_STREAM(cuMemcpyBatchAsync, _ptsz, EXIT, tell_batch),
    WEIR_CALL_OF_STREAM(cuMemcpy3DBatchAsync, _ptsz, EXIT, tell_batch),
#endif
#if CUDA_VERSION >= 13000
    WEIR_CALL_OF_STREAM(cuMemcpyBatchAsync_v2, _ptsz, EXIT, tell_batch),
    WEIR_CALL_OF_STREAM(cuMemcpy3DBatchAsync_v2, _ptsz, EXIT, tell_batch),
#endif
};

}  // namespace

std::span<watched_call const> copy_calls() {
  return copy_rows;
}

}  // namespace weir::driver::cuda
#endif
