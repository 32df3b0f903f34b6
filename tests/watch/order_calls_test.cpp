// Streams, events and waits of a program, as the watch tells them.
// Threads: one, but where a test says so.
#include <thread>

#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

using watched_order = watched;
CUstream const s = handle<CUstream>(0x50), other = handle<CUstream>(0x60);
CUevent const e = handle<CUevent>(0x70);

TEST_F(watched_order, streams_are_told_before_their_end) {
  CUstream made = s;
  WEIR_CALLS(cuStreamCreate, &made, CU_STREAM_DEFAULT);
  made = other;
  WEIR_CALLS(cuStreamCreateWithPriority, &made, CU_STREAM_NON_BLOCKING, -1);
  cuStreamDestroy_v2_params const gone{s};
  CUpti_CallbackData data{};
  data.functionName = "cuStreamDestroy_v2";
  data.functionParams = &gone;
  data.callbackSite = CUPTI_API_ENTER;  // another thread may get the handle before the call returns
  tell(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamDestroy_v2, data);
  expect({"made blocking on 0:50", "made on 0:60", "gone on 0:50"});
}

TEST_F(watched_order, events_are_told_on_their_streams) {
  WEIR_CALLS(cuEventRecord, e, s);
  WEIR_CALLS(cuStreamWaitEvent, other, e, 0);
  WEIR_CALLS(cuEventRecordWithFlags, e, other, 0);
  WEIR_CALLS(cuEventDestroy_v2, e);
  expect({"record 70 on 0:50", "wait 70 on 0:60", "record 70 on 0:60", "event gone 70"});
}

// In code that was compiled for per-thread default streams null is the stream of the thread.
TEST_F(watched_order, streams_that_are_null_are_those_of_the_code) {
  WEIR_CALLS(cuEventRecord, e, nullptr);
  WEIR_CALLS(cuEventRecord_ptsz, e, nullptr);
  WEIR_CALLS(cuEventRecord, e, CU_STREAM_LEGACY);
  WEIR_CALLS(cuEventRecord_ptsz, e, CU_STREAM_PER_THREAD);
  WEIR_CALLS(cuStreamWaitEvent_ptsz, nullptr, e, 0);
  WEIR_CALLS(cuStreamSynchronize_ptsz, nullptr);
  expect({"record 70 on 0:0", "record 70 on 0:2", "record 70 on 0:1", "record 70 on 0:2", "wait 70 on 0:2",
          "done on 0:2"});
}

TEST_F(watched_order, synchronization_is_told_once_it_is_done) {
  WEIR_CALLS(cuStreamSynchronize, s);
  WEIR_CALLS(cuStreamQuery, s);
  WEIR_CALLS(cuEventSynchronize, e);
  WEIR_CALLS(cuEventQuery, e);
  synchronize_device();
  expect({"done on 0:50", "done on 0:50", "event done 70", "event done 70", "device done 0"});
  call(CUPTI_DRIVER_TRACE_CBID_cuStreamQuery, "cuStreamQuery", cuStreamQuery_params{s}, CUDA_ERROR_NOT_READY);
  call(CUPTI_DRIVER_TRACE_CBID_cuEventQuery, "cuEventQuery", cuEventQuery_params{e}, CUDA_ERROR_NOT_READY);
  expect({});
}

TEST_F(watched_order, streams_of_another_device_are_told_as_its_own) {
  driver_answers().device_of[other] = 1;
  WEIR_CALLS(cuEventRecord, e, other);
  WEIR_CALLS(cuStreamSynchronize, other);
  current_device = 1;
  WEIR_CALLS(cuEventRecord, e, nullptr);
  synchronize_device();
  current_device = 0;
  expect({"record 70 on 1:60", "done on 1:60", "record 70 on 1:0", "device done 1"});
}

TEST_F(watched_order, host_functions_are_work) {
  WEIR_CALLS(cuLaunchHostFunc, s, nullptr, nullptr);
  WEIR_CALLS(cuStreamAddCallback, s, nullptr, nullptr, 0);
  expect({"cuLaunchHostFunc on 0:50", "cuStreamAddCallback on 0:50"});
}

TEST_F(watched_order, calls_with_an_unknown_order_are_listed) {
  CUevent opened = e;
  WEIR_CALLS(cuStreamWaitValue32_v2, s, 0x1000, 1, 0);
  WEIR_CALLS(cuWaitExternalSemaphoresAsync, nullptr, nullptr, 0, s);
  WEIR_CALLS(cuIpcOpenEventHandle, &opened, {});
  expect({"not understood: stream memory operations, which may order streams",
          "not understood: external semaphores and context events, which may order streams",
          "not understood: events of other processes, which may order streams"});
}

// A captured call orders nothing now, whichever thread makes it. Other streams go on.
TEST_F(watched_order, captured_streams_are_told_by_no_thread) {
  WEIR_CALLS(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_RELAXED);
  driver_answers().captured[s] = true;
  std::thread([] {
    WEIR_CALLS(cuEventRecord, e, s);
    WEIR_CALLS(cuStreamWaitEvent, s, e, 0);
    WEIR_CALLS(cuLaunchHostFunc, s, nullptr, nullptr);
    WEIR_CALLS(cuEventRecord, e, other);
  }).join();
  expect({"record 70 on 0:60"});
  driver_answers().captured[s] = false;
  WEIR_CALLS_IN_VAIN(cuStreamEndCapture, s, nullptr);  // the capture was invalid, and has ended
  WEIR_CALLS(cuEventRecord, e, s);
  expect({"record 70 on 0:50"});
}

}  // namespace
}  // namespace weir::watch_tests
