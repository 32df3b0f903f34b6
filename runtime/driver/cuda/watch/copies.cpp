// Copies and fills, and whether the host waits for them.
// Threads: any.
#include "runtime/driver/cuda/symbols.h"
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
namespace weir::driver::cuda {
namespace {

// Pageable memory is not known to the driver.
enum class memory_of : std::uint8_t { pageable, pinned, device };
memory_of memory_at(address at) {
  unsigned kind = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* const to = &kind;
  void* answers[] = {to};
  CUresult const is = load().api->cuPointerGetAttributes(1, &which, answers, static_cast<CUdeviceptr>(at));
  if (is != CUDA_SUCCESS || kind == 0)
    return memory_of::pageable;
  return kind == CU_MEMORYTYPE_DEVICE ? memory_of::device : memory_of::pinned;
}
bool is_pageable(address at) {
  return memory_at(at) == memory_of::pageable;
}
bool is_host(address at) {
  return memory_at(at) != memory_of::device;
}
// The host waits for a copy to its memory, and for one from pinned memory. Within a device it does not wait.
bool waits_for_copy(address to, address from) {
  return is_host(to) || memory_at(from) == memory_of::pinned;
}

struct copy_parts {
  CUstream stream;
  address to, from;
  std::size_t bytes;
  bool waits;
};
void tell_copy(seen_call const& call, copy_parts const& c) {
  call.each_on(c.stream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.copied(device, on, c.to, c.from, c.bytes, c.waits, call.site());
  });
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
  tell_copy(call,
            {nullptr, number_of(p.dstDevice), number_of(p.srcHost), p.ByteCount, !is_pageable(number_of(p.srcHost))});
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
  tell_copy(call,
            {p.hStream, number_of(p.dstHost), number_of(p.srcDevice), p.ByteCount, is_pageable(number_of(p.dstHost))});
}
void tell_within_device(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoD_v2_params>();
  tell_copy(call, {nullptr, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, false});
}
void tell_within_device_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyDtoDAsync_v2_params>();
  tell_copy(call, {p.hStream, number_of(p.dstDevice), number_of(p.srcDevice), p.ByteCount, false});
}
void tell_any(seen_call const& call) {
  auto const& p = call.given<cuMemcpy_params>();
  bool const waits = waits_for_copy(p.dst, p.src);
  if (is_host(p.src))
    tell_earlier_work_done(call);
  tell_copy(call, {nullptr, number_of(p.dst), number_of(p.src), p.ByteCount, waits});
}
void tell_any_async(seen_call const& call) {
  auto const& p = call.given<cuMemcpyAsync_params>();
  bool const waits = is_pageable(p.dst) || (is_host(p.dst) && is_host(p.src));
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
void tell_rows(seen_call const& call, CUstream stream, std::span<check::seen_pointer const> all, bool waits) {
  call.each_on(stream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.launched(device, on, call.name(), all, call.site());
    if (waits)
      to.stream_done(device, on);
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
  check::seen_pointer const both[] = {source_of(copy), target_of(copy)};
  tell_rows(call, nullptr, both, waits_for_copy(both[1].at, both[0].at));
}
template <class Parameters>
void tell_rows_async(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  check::seen_pointer const both[] = {source_of(*p.pCopy), target_of(*p.pCopy)};
  tell_rows(call, p.hStream, both, is_pageable(both[1].at));
}

// The host waits for a fill of its own memory.
void tell_fill(seen_call const& call, CUstream stream, CUdeviceptr at, std::size_t bytes, bool waits) {
  call.each_on(stream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.filled(device, on, number_of(at), bytes, waits, call.site());
  });
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
  tell_rows(call, stream, {&to, 1}, false);
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
