// Streams, events and waits of the host.
// Threads: any.
#include "runtime/driver/cuda/symbols.h"
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
namespace weir::driver::cuda {
namespace {

void tell_stream_made(seen_call const& call, CUstream made, unsigned flags) {
  int const device = call.device();
  bool const is_blocking = !(flags & CU_STREAM_NON_BLOCKING);
  call.each([&](seen_calls& to) { to.stream_made(device, call.handle(made), is_blocking); });
}
void tell_stream(seen_call const& call) {
  auto const& p = call.given<cuStreamCreate_params>();
  tell_stream_made(call, *p.phStream, p.Flags);
}
void tell_stream_with_priority(seen_call const& call) {
  auto const& p = call.given<cuStreamCreateWithPriority_params>();
  tell_stream_made(call, *p.phStream, p.flags);
}
void tell_stream_gone(seen_call const& call) {
  CUstream const s = call.given<cuStreamDestroy_v2_params>().hStream;
  int const device = call.device_of(s);
  call.each([&](seen_calls& to) { to.stream_gone(device, call.handle(s)); });
}

template <class Parameters>
void tell_recorded(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  call.each_on(p.hStream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.recorded(device, on, number_of(p.hEvent));
  });
}
void tell_wait(seen_call const& call) {
  auto const& p = call.given<cuStreamWaitEvent_params>();
  call.each_on(p.hStream,
               [&](seen_calls& to, int device, seen_calls::stream on) { to.waited(device, on, number_of(p.hEvent)); });
}
void tell_event_gone(seen_call const& call) {
  CUevent const e = call.given<cuEventDestroy_v2_params>().hEvent;
  call.each([&](seen_calls& to) { to.event_gone(number_of(e)); });
}

template <class Parameters>
void tell_stream_done(seen_call const& call) {
  CUstream const s = call.given<Parameters>().hStream;
  int const device = call.device_of(s);
  call.each([&](seen_calls& to) { to.stream_done(device, call.handle(s)); });
}
template <class Parameters>
void tell_event_done(seen_call const& call) {
  CUevent const e = call.given<Parameters>().hEvent;
  call.each([&](seen_calls& to) { to.event_done(number_of(e)); });
}
void tell_device_done(seen_call const& call) {
  int const device = call.device();
  call.each([&](seen_calls& to) { to.device_done(device); });
}

template <class Parameters>
void tell_host_function(seen_call const& call) {
  call.each_on(call.given<Parameters>().hStream,
               [&](seen_calls& to, int device, seen_calls::stream on) { to.host_function(device, on, call.site()); });
}
void tell_memory_operation(seen_call const& call) {
  call.not_understood("stream memory operations, which may order streams");
}
void tell_semaphore(seen_call const& call) {
  call.not_understood("external semaphores and context events, which may order streams");
}
void tell_shared_event(seen_call const& call) {
  call.not_understood("events of other processes, which may order streams");
}

void tell_capture_began(seen_call const&) {
  capture_began();
}
// An end that fails ends the capture, too, unless it was asked of the wrong stream or thread.
void tell_capture_ended(seen_call const& call) {
  if (!call.is_captured(call.given<cuStreamEndCapture_params>().hStream))
    capture_ended();
}

constexpr watched_call order_rows[] = {
    WEIR_ORDER(cuStreamCreate, EXIT, tell_stream),
    WEIR_ORDER(cuStreamCreateWithPriority, EXIT, tell_stream_with_priority),
    WEIR_ORDER(cuStreamDestroy_v2, ENTER, tell_stream_gone),
    WEIR_ORDER_OF_STREAM(cuEventRecord, _ptsz, EXIT, tell_recorded<cuEventRecord_params>),
    WEIR_ORDER_OF_STREAM(cuEventRecordWithFlags, _ptsz, EXIT, tell_recorded<cuEventRecordWithFlags_params>),
    WEIR_ORDER_OF_STREAM(cuStreamWaitEvent, _ptsz, EXIT, tell_wait),
    WEIR_ORDER(cuEventDestroy_v2, ENTER, tell_event_gone),
    WEIR_ORDER_OF_STREAM(cuStreamSynchronize, _ptsz, EXIT, tell_stream_done<cuStreamSynchronize_params>),
    WEIR_ORDER_OF_STREAM(cuStreamQuery, _ptsz, EXIT, tell_stream_done<cuStreamQuery_params>),
    WEIR_ORDER(cuEventSynchronize, EXIT, tell_event_done<cuEventSynchronize_params>),
    WEIR_ORDER(cuEventQuery, EXIT, tell_event_done<cuEventQuery_params>),
    WEIR_ORDER(cuCtxSynchronize, EXIT, tell_device_done),
    WEIR_ORDER(cuIpcOpenEventHandle, EXIT, tell_shared_event),
    WEIR_CALL_OF_STREAM(cuLaunchHostFunc, _ptsz, EXIT, tell_host_function<cuLaunchHostFunc_params>),
    WEIR_CALL_OF_STREAM(cuStreamAddCallback, _ptsz, EXIT, tell_host_function<cuStreamAddCallback_params>),
    WEIR_ORDER_OF_STREAM(cuStreamWaitValue32_v2, _ptsz, EXIT, tell_memory_operation),
    WEIR_ORDER_OF_STREAM(cuStreamWaitValue64_v2, _ptsz, EXIT, tell_memory_operation),
    WEIR_ORDER_OF_STREAM(cuStreamWriteValue32_v2, _ptsz, EXIT, tell_memory_operation),
    WEIR_ORDER_OF_STREAM(cuStreamWriteValue64_v2, _ptsz, EXIT, tell_memory_operation),
    WEIR_ORDER_OF_STREAM(cuStreamBatchMemOp_v2, _ptsz, EXIT, tell_memory_operation),
    WEIR_ORDER_OF_STREAM(cuSignalExternalSemaphoresAsync, _ptsz, EXIT, tell_semaphore),
    WEIR_ORDER_OF_STREAM(cuWaitExternalSemaphoresAsync, _ptsz, EXIT, tell_semaphore),
    WEIR_ORDER_OF_STREAM(cuStreamBeginCapture, _ptsz, EXIT, tell_capture_began),
    WEIR_ORDER_OF_STREAM(cuStreamBeginCapture_v2, _ptsz, EXIT, tell_capture_began),
    {CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, CUPTI_API_EXIT, false, tell_capture_ended, false, true},
    {CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture_ptsz, CUPTI_API_EXIT, true, tell_capture_ended, false, true},
#if CUDA_VERSION >= 12030
    WEIR_ORDER_OF_STREAM(cuStreamBeginCaptureToGraph, _ptsz, EXIT, tell_capture_began),
#endif
#if CUDA_VERSION >= 12050
    WEIR_ORDER(cuCtxRecordEvent, EXIT, tell_semaphore),
    WEIR_ORDER(cuCtxWaitEvent, EXIT, tell_semaphore),
#endif
#if CUDA_VERSION >= 13000
    WEIR_ORDER(cuCtxSynchronize_v2, EXIT, tell_device_done),
#endif
};

}  // namespace

std::span<watched_call const> order_calls() {
  return order_rows;
}

}  // namespace weir::driver::cuda
#endif
