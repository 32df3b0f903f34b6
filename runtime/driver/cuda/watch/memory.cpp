// Memory that the program takes from CUDA itself.
// Threads: any. A free is told before it is made: the address may be another thread's as soon as the call returns.
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
namespace weir::driver::cuda {
namespace {

constexpr int of_host = -1;

void tell_taken(seen_call const& call, int device, seen_calls::stream stream, address at, std::size_t bytes) {
  if (at == 0)
    return;
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.allocated(device, stream, at, bytes, site); });
}
void tell_given_back(seen_call const& call, int device, seen_calls::stream stream, address at) {
  if (at == 0)
    return;
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.freed(device, stream, at, site); });
}

void tell_device_memory(seen_call const& call) {
  auto const& p = call.given<cuMemAlloc_v2_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), p.bytesize);
}
void tell_rows_of_memory(seen_call const& call) {
  auto const& p = call.given<cuMemAllocPitch_v2_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), *p.pPitch * p.Height);
}
void tell_managed(seen_call const& call) {
  auto const& p = call.given<cuMemAllocManaged_params>();
  call.not_understood("uses of managed memory by the host");
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), p.bytesize);
}
template <class Parameters>
void tell_memory_in_order(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  if (call.is_captured(p.hStream))
    return;
  tell_taken(call, call.device_of(p.hStream), call.handle(p.hStream), number_of(*p.dptr), p.bytesize);
}
void tell_pages(seen_call const& call) {
  auto const& p = call.given<cuMemMap_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(p.ptr), p.size);
}
template <class Parameters>
void tell_host_memory(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_taken(call, of_host, seen_calls::no_stream, number_of(*p.pp), p.bytesize);
}
void tell_registered(seen_call const& call) {
  auto const& p = call.given<cuMemHostRegister_v2_params>();
  tell_taken(call, of_host, seen_calls::no_stream, number_of(p.p), p.bytesize);
}

void tell_free(seen_call const& call) {
  tell_given_back(call, of_host, seen_calls::no_stream, number_of(call.given<cuMemFree_v2_params>().dptr));
}
void tell_unmapped(seen_call const& call) {
  tell_given_back(call, of_host, seen_calls::no_stream, number_of(call.given<cuMemUnmap_params>().ptr));
}
void tell_free_in_order(seen_call const& call) {
  auto const& p = call.given<cuMemFreeAsync_params>();
  if (!call.is_captured(p.hStream))
    tell_given_back(call, call.device_of(p.hStream), call.handle(p.hStream), number_of(p.dptr));
}
template <class Parameters>
void tell_host_free(seen_call const& call) {
  tell_given_back(call, of_host, seen_calls::no_stream, number_of(call.given<Parameters>().p));
}

constexpr watched_call memory_rows[] = {
    WEIR_CALL(cuMemAlloc_v2, EXIT, tell_device_memory),
    WEIR_CALL(cuMemAllocPitch_v2, EXIT, tell_rows_of_memory),
    WEIR_CALL(cuMemAllocManaged, EXIT, tell_managed),
    WEIR_CALL_OF_STREAM(cuMemAllocAsync, _ptsz, EXIT, tell_memory_in_order<cuMemAllocAsync_params>),
    WEIR_CALL_OF_STREAM(cuMemAllocFromPoolAsync, _ptsz, EXIT, tell_memory_in_order<cuMemAllocFromPoolAsync_params>),
    WEIR_CALL(cuMemMap, EXIT, tell_pages),
    WEIR_CALL(cuMemHostAlloc, EXIT, tell_host_memory<cuMemHostAlloc_params>),
    WEIR_CALL(cuMemAllocHost_v2, EXIT, tell_host_memory<cuMemAllocHost_v2_params>),
    WEIR_CALL(cuMemHostRegister_v2, EXIT, tell_registered),
    WEIR_CALL(cuMemFree_v2, ENTER, tell_free),
    WEIR_CALL_OF_STREAM(cuMemFreeAsync, _ptsz, ENTER, tell_free_in_order),
    WEIR_CALL(cuMemUnmap, ENTER, tell_unmapped),
    WEIR_CALL(cuMemFreeHost, ENTER, tell_host_free<cuMemFreeHost_params>),
    WEIR_CALL(cuMemHostUnregister, ENTER, tell_host_free<cuMemHostUnregister_params>),
};

}  // namespace

std::span<watched_call const> memory_calls() {
  return memory_rows;
}

}  // namespace weir::driver::cuda
#endif
