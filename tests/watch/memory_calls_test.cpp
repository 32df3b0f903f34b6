// Memory of a program: what it takes, what it gives back, and what lies there without a call that takes it.
// Threads: one.
#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

using watched_memory = watched;
CUstream const s = handle<CUstream>(0x50);
constexpr CUdeviceptr at = 0x100000;

TEST_F(watched_memory, is_told_with_its_bytes) {
  CUdeviceptr made = at;
  void* host = handle<void*>(0x300000);
  std::size_t pitch = 512;
  WEIR_CALLS(cuMemAlloc_v2, &made, 4096);
  WEIR_CALLS(cuMemAllocPitch_v2, &made, &pitch, 500, 8, 4);
  WEIR_CALLS(cuMemAllocManaged, &made, 4096, CU_MEM_ATTACH_GLOBAL);
  WEIR_CALLS(cuMemAllocAsync, &made, 4096, s);
  WEIR_CALLS(cuMemAllocAsync_ptsz, &made, 4096, nullptr);
  WEIR_CALLS(cuMemMap, at, 65536, 0, 0, 0);
  WEIR_CALLS(cuMemHostAlloc, &host, 4096, 0);
  WEIR_CALLS(cuMemHostRegister_v2, host, 4096, 0);
  expect({"cuMemAlloc on 0:none at 100000 4096", "cuMemAllocPitch on 0:none at 100000 4096",
          "not understood: uses of managed memory by the host", "cuMemAllocManaged on 0:none at 100000 4096",
          "cuMemAllocAsync on 0:50 at 100000 4096", "cuMemAllocAsync on 0:2 at 100000 4096",
          "cuMemMap on 0:none at 100000 65536", "cuMemHostAlloc on -1:none at 300000 4096",
          "cuMemHostRegister on -1:none at 300000 4096"});
}

// Another thread may get the address before the call returns.
TEST_F(watched_memory, is_given_back_before_the_call_is_made) {
  cuMemFree_v2_params const given{at};
  CUpti_CallbackData data{};
  data.functionName = "cuMemFree_v2";
  data.functionParams = &given;
  data.callbackSite = CUPTI_API_ENTER;
  tell(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, data);
  expect({"cuMemFree on -1:none at 100000"});
  WEIR_CALLS(cuMemFree_v2, 0);
  WEIR_CALLS(cuMemFreeAsync, at, s);
  WEIR_CALLS(cuMemUnmap, at, 65536);
  WEIR_CALLS(cuMemFreeHost, handle<void*>(0x300000));
  WEIR_CALLS(cuMemHostUnregister, handle<void*>(0x300000));
  expect({"cuMemFreeAsync on 0:50 at 100000", "unmap at 100000 65536", "cuMemFreeHost on -1:none at 300000",
          "cuMemHostUnregister on -1:none at 300000"});
}

// A second open returns the same address, and the first close closes nothing.
TEST_F(watched_memory, of_another_process_ends_with_its_last_close) {
  driver_answers().blocks[at] = {65536, CU_MEMORYTYPE_DEVICE};
  CUdeviceptr opened = at;
  WEIR_CALLS(cuIpcOpenMemHandle_v2, &opened, {}, 0);
  WEIR_CALLS(cuIpcOpenMemHandle_v2, &opened, {}, 0);
  WEIR_CALLS(cuIpcCloseMemHandle, at);
  expect({"found by 0 at 100000 65536", "found by 0 at 100000 65536"});
  WEIR_CALLS(cuIpcCloseMemHandle, at);
  expect({"closed at 100000"});
}

// cudaIpcGetMemHandle gives handles of parts of one block.
TEST_F(watched_memory, of_another_process_ends_with_its_last_handle) {
  driver_answers().blocks[at] = {65536, CU_MEMORYTYPE_DEVICE};
  CUdeviceptr opened = at;
  WEIR_CALLS(cuIpcOpenMemHandle_v2, &opened, {}, 0);
  opened = at + 4096;
  WEIR_CALLS(cuIpcOpenMemHandle_v2, &opened, {}, 0);
  (void)notes.take();
  WEIR_CALLS(cuIpcCloseMemHandle, at);
  WEIR_CALLS(cuIpcCloseMemHandle, at + 64);  // none is open there
  WEIR_CALLS_IN_VAIN(cuIpcCloseMemHandle, at + 4096);
  expect({});
  WEIR_CALLS(cuIpcCloseMemHandle, at + 4096);
  expect({"closed at 100000"});
}

TEST_F(watched_memory, of_another_process_without_a_size_is_hidden) {
  CUdeviceptr opened = at;
  WEIR_CALLS(cuMemPoolImportPointer, &opened, nullptr, nullptr);
  expect({"not understood: blocks of other processes whose size the driver does not tell", "hidden at 100000 1"});
}

TEST_F(watched_memory, of_a_module_is_found_until_its_unload) {
  CUdeviceptr variable = at;
  std::size_t bytes = 256;
  auto const module = handle<CUmodule>(0x1000), other = handle<CUmodule>(0x2000);
  WEIR_CALLS(cuModuleGetGlobal_v2, &variable, &bytes, module, "table");
  WEIR_CALLS(cuModuleGetGlobal_v2, &variable, &bytes, module, "table");
  WEIR_CALLS(cuModuleGetGlobal_v2, nullptr, &bytes, module, "table");
  WEIR_CALLS(cuModuleUnload, other);
  expect({"found by 0 at 100000 256", "found by 0 at 100000 256"});
  WEIR_CALLS(cuModuleUnload, module);
  WEIR_CALLS(cuModuleUnload, module);
  expect({"hidden at 100000 256"});
  WEIR_CALLS(cuLibraryGetGlobal, &variable, &bytes, handle<CUlibrary>(0x3000), "table");
  WEIR_CALLS(cuLibraryUnload, handle<CUlibrary>(0x3000));
  expect({"found by 0 at 100000 256", "hidden at 100000 256"});
}

TEST_F(watched_memory, of_a_graph_is_hidden_and_listed) {
  CUdeviceptr made = at;
  WEIR_CALLS(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
  driver_answers().captured[s] = true;
  WEIR_CALLS(cuMemAllocAsync, &made, 4096, s);
  WEIR_CALLS(cuMemFreeAsync, at, s);
  driver_answers().captured[s] = false;
  WEIR_CALLS(cuStreamEndCapture, s, nullptr);
  CUDA_MEM_ALLOC_NODE_PARAMS node{};
  node.dptr = at;
  node.bytesize = 8192;
  WEIR_CALLS(cuGraphAddMemAllocNode, nullptr, nullptr, nullptr, 0, &node);
  expect({"not understood: allocations inside graphs of the program", "hidden at 100000 4096",
          "not understood: allocations inside graphs of the program", "hidden at 100000 8192"});
}

TEST_F(watched_memory, of_other_kinds_is_found_or_listed) {
  CUdeviceptr made = at;
  std::size_t bytes = 512;
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC external{};
  external.size = 1024;
  WEIR_CALLS(cuExternalMemoryGetMappedBuffer, &made, nullptr, &external);
  WEIR_CALLS(cuGraphicsResourceGetMappedPointer_v2, &made, &bytes, nullptr);
  WEIR_CALLS(cuMemHostGetDevicePointer_v2, &made, handle<void*>(at), 0);
  WEIR_CALLS(cuMemHostGetDevicePointer_v2, &made, handle<void*>(0x300000), 0);
  WEIR_CALLS(cuArrayCreate_v2, nullptr, nullptr);
  expect({"found by 0 at 100000 1024", "not understood: mapped resources of graphics", "hidden at 100000 512",
          "not understood: blocks of pinned memory that have another address on the device", "hidden at 100000 1",
          "not understood: textures, surfaces and CUDA arrays, which kernels use without a pointer"});
}

}  // namespace
}  // namespace weir::watch_tests
