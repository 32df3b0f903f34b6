// Copies and fills of a program: which bytes they use, and whether the host has waited for them.
// Threads: one.
#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

constexpr CUdeviceptr on_device = 0x100000, on_second = 0x200000, pinned = 0x300000, pageable = 0x400000;

struct watched_copies : watched {
  watched_copies() {
    driver_answers().blocks = {{on_device, {4096, CU_MEMORYTYPE_DEVICE}},
                               {on_second, {4096, CU_MEMORYTYPE_DEVICE}},
                               {pinned, {4096, CU_MEMORYTYPE_HOST}}};
  }
  static void* host(CUdeviceptr at) { return handle<void*>(at); }
  CUstream const s = handle<CUstream>(0x50);
};

// From pageable memory the call returns once the bytes are read: they may not have arrived.
TEST_F(watched_copies, to_a_device_wait_if_the_source_is_pinned) {
  WEIR_CALLS(cuMemcpyHtoD_v2, on_device, host(pinned), 64);
  WEIR_CALLS(cuMemcpyHtoD_v2, on_device, host(pageable), 64);
  WEIR_CALLS(cuMemcpyHtoDAsync_v2, on_device, host(pinned), 64, s);
  WEIR_CALLS(cuMemcpyHtoDAsync_v2, on_device, host(pageable), 64, s);
  expect({"done on 0:0", "cuMemcpyHtoD on 0:0 to 100000 from 300000 64 waits", "done on 0:0",
          "cuMemcpyHtoD on 0:0 to 100000 from 400000 64", "cuMemcpyHtoDAsync on 0:50 to 100000 from 300000 64",
          "cuMemcpyHtoDAsync on 0:50 to 100000 from 400000 64"});
}

TEST_F(watched_copies, to_the_host_wait_unless_pinned_and_async) {
  WEIR_CALLS(cuMemcpyDtoH_v2, host(pinned), on_device, 64);
  WEIR_CALLS(cuMemcpyDtoH_v2_ptds, host(pageable), on_device, 64);
  WEIR_CALLS(cuMemcpyDtoHAsync_v2, host(pinned), on_device, 64, s);
  WEIR_CALLS(cuMemcpyDtoHAsync_v2, host(pageable), on_device, 64, s);
  expect({"cuMemcpyDtoH on 0:0 to 300000 from 100000 64 waits", "cuMemcpyDtoH on 0:2 to 400000 from 100000 64 waits",
          "cuMemcpyDtoHAsync on 0:50 to 300000 from 100000 64",
          "cuMemcpyDtoHAsync on 0:50 to 400000 from 100000 64 waits"});
}

TEST_F(watched_copies, within_a_device_do_not_wait) {
  WEIR_CALLS(cuMemcpyDtoD_v2, on_second, on_device, 64);
  WEIR_CALLS(cuMemcpyDtoDAsync_v2, on_second, on_device, 64, s);
  expect({"cuMemcpyDtoD on 0:0 to 200000 from 100000 64", "cuMemcpyDtoDAsync on 0:50 to 200000 from 100000 64"});
}

TEST_F(watched_copies, of_any_memory_wait_by_what_it_is) {
  WEIR_CALLS(cuMemcpy, on_second, on_device, 64);
  WEIR_CALLS(cuMemcpy, on_device, pageable, 64);
  WEIR_CALLS(cuMemcpy, on_device, pinned, 64);
  WEIR_CALLS(cuMemcpy, pageable, on_device, 64);
  WEIR_CALLS(cuMemcpyAsync, pinned, on_device, 64, s);
  WEIR_CALLS(cuMemcpyAsync, pageable, on_device, 64, s);
  WEIR_CALLS(cuMemcpyAsync, pinned, pageable, 64, s);
  expect({"cuMemcpy on 0:0 to 200000 from 100000 64", "done on 0:0", "cuMemcpy on 0:0 to 100000 from 400000 64",
          "done on 0:0", "cuMemcpy on 0:0 to 100000 from 300000 64 waits",
          "cuMemcpy on 0:0 to 400000 from 100000 64 waits", "cuMemcpyAsync on 0:50 to 300000 from 100000 64",
          "cuMemcpyAsync on 0:50 to 400000 from 100000 64 waits",
          "cuMemcpyAsync on 0:50 to 300000 from 400000 64 waits"});
}

TEST_F(watched_copies, between_devices_come_behind_the_work_of_both) {
  auto const first = handle<CUcontext>(0x100), second = handle<CUcontext>(0x101);
  WEIR_CALLS(cuMemcpyPeer, on_second, second, on_device, first, 64);
  WEIR_CALLS(cuMemcpyPeerAsync, on_second, second, on_device, first, 64, s);
  expect({"device done 1", "device done 0", "cuMemcpyPeer on 0:0 to 200000 from 100000 64 waits",
          "cuMemcpyPeerAsync on 0:50 to 200000 from 100000 64"});
}

TEST_F(watched_copies, of_rows_are_known_by_their_pointers) {
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = on_device;
  rows.srcPitch = 256;
  rows.srcY = 2;
  rows.srcXInBytes = 16;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = host(pageable);
  rows.WidthInBytes = 64;
  rows.Height = 4;
  WEIR_CALLS(cuMemcpy2D_v2, &rows);
  WEIR_CALLS(cuMemcpy2DAsync_v2, &rows, s);
  rows.dstHost = host(pinned);
  WEIR_CALLS(cuMemcpy2DAsync_v2, &rows, s);
  expect({"cuMemcpy2D cuMemcpy2D on 0:0 r100210 w400000", "done on 0:0",
          "cuMemcpy2DAsync cuMemcpy2DAsync on 0:50 r100210 w400000", "done on 0:50",
          "cuMemcpy2DAsync cuMemcpy2DAsync on 0:50 r100210 w300000"});
}

TEST_F(watched_copies, that_fill_have_the_bytes_of_their_elements) {
  WEIR_CALLS(cuMemsetD8_v2, on_device, 1, 64);
  WEIR_CALLS(cuMemsetD16_v2, pinned, 1, 64);
  WEIR_CALLS(cuMemsetD32Async, on_device, 1, 64, s);
  WEIR_CALLS(cuMemsetD2D32Async, on_device, 256, 1, 16, 4, s);
  WEIR_CALLS(cuMemsetD2D8_v2, on_device, 256, 1, 16, 4);
  expect({"cuMemsetD8 on 0:0 to 100000 64", "cuMemsetD16 on 0:0 to 300000 128 waits",
          "cuMemsetD32Async on 0:50 to 100000 256", "cuMemsetD2D32Async cuMemsetD2D32Async on 0:50 w100000",
          "cuMemsetD2D8 cuMemsetD2D8 on 0:0 w100000"});
}

TEST_F(watched_copies, that_are_captured_are_not_told) {
  WEIR_CALLS(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_RELAXED);
  driver_answers().captured[s] = true;
  WEIR_CALLS(cuMemcpyDtoDAsync_v2, on_second, on_device, 64, s);
  WEIR_CALLS(cuMemsetD8Async, on_device, 1, 64, s);
  driver_answers().captured[s] = false;
  WEIR_CALLS(cuStreamEndCapture, s, nullptr);
  expect({});
}

TEST_F(watched_copies, in_batches_and_of_arrays_are_listed) {
  WEIR_CALLS(cuMemcpy3DPeer, nullptr);
  WEIR_CALLS(cuMemcpyAtoD_v2, on_device, nullptr, 0, 64);
  expect({"not understood: copies in batches", "not understood: copies from and to CUDA arrays"});
}

}  // namespace
}  // namespace weir::watch_tests
