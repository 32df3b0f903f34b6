// CUDA's driver entry points, found at run time by name and version,
// and what their results mean behind the seam.
// Threads: any; the table is filled once and never changes.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "runtime/driver/driver.h"

// Each name with the version of its shape.
// The oldest shape that does the job, so that older drivers (12.0 on) serve.
#define WEIR_CUDA_ENTRIES(X)                  \
  X(cuInit, 2000)                             \
  X(cuDriverGetVersion, 2020)                 \
  X(cuDeviceGetCount, 2000)                   \
  X(cuDeviceGet, 2000)                        \
  X(cuDeviceGetName, 2000)                    \
  X(cuDeviceTotalMem, 3020)                   \
  X(cuDeviceGetAttribute, 2000)               \
  X(cuDeviceGetUuid, 11040)                   \
  X(cuDeviceGetPCIBusId, 4010)                \
  X(cuDeviceCanAccessPeer, 4000)              \
  X(cuDeviceGetP2PAttribute, 8000)            \
  X(cuDevicePrimaryCtxRetain, 7000)           \
  X(cuDevicePrimaryCtxRelease, 11000)         \
  X(cuCtxGetCurrent, 4000)                    \
  X(cuCtxSetCurrent, 4000)                    \
  X(cuCtxPushCurrent, 4000)                   \
  X(cuCtxPopCurrent, 4000)                    \
  X(cuCtxGetDevice, 2000)                     \
  X(cuCtxSynchronize, 2000)                   \
  X(cuCtxGetStreamPriorityRange, 5050)        \
  X(cuThreadExchangeStreamCaptureMode, 10010) \
  X(cuMemGetInfo, 3020)                       \
  X(cuMemGetAllocationGranularity, 10020)     \
  X(cuMemAddressReserve, 10020)               \
  X(cuMemAddressFree, 10020)                  \
  X(cuMemCreate, 10020)                       \
  X(cuMemRelease, 10020)                      \
  X(cuMemExportToShareableHandle, 10020)      \
  X(cuMemImportFromShareableHandle, 10020)    \
  X(cuMemMap, 10020)                          \
  X(cuMemUnmap, 10020)                        \
  X(cuMemSetAccess, 10020)                    \
  X(cuMemAlloc, 3020)                         \
  X(cuMemFree, 3020)                          \
  X(cuMemHostAlloc, 2020)                     \
  X(cuMemFreeHost, 2000)                      \
  X(cuMemHostGetDevicePointer, 3020)          \
  X(cuMemHostRegister, 6050)                  \
  X(cuMemHostUnregister, 4000)                \
  X(cuPointerGetAttributes, 7000)             \
  X(cuStreamCreateWithPriority, 5050)         \
  X(cuStreamDestroy, 4000)                    \
  X(cuStreamQuery, 2000)                      \
  X(cuStreamSynchronize, 2000)                \
  X(cuStreamIsCapturing, 10000)               \
  X(cuStreamGetCtx, 9020)                     \
  X(cuStreamWaitEvent, 3020)                  \
  X(cuStreamWaitValue32, 11070)               \
  X(cuEventCreate, 2000)                      \
  X(cuEventDestroy, 4000)                     \
  X(cuEventRecord, 2000)                      \
  X(cuEventQuery, 2000)                       \
  X(cuEventSynchronize, 2000)                 \
  X(cuEventElapsedTime, 2000)                 \
  X(cuMemcpyAsync, 4000)                      \
  X(cuMemcpyPeerAsync, 4000)                  \
  X(cuMemsetD8Async, 3020)                    \
  X(cuMemsetD16Async, 3020)                   \
  X(cuMemsetD32Async, 3020)                   \
  X(cuLaunchHostFunc, 10000)                  \
  X(cuStreamBeginCapture, 10010)              \
  X(cuStreamEndCapture, 10000)                \
  X(cuGraphInstantiateWithFlags, 11040)       \
  X(cuGraphLaunch, 10000)                     \
  X(cuGraphExecDestroy, 10000)                \
  X(cuGraphDestroy, 10000)

namespace weir::driver::cuda {

// ## keeps cuda.h from renaming the type; the field itself carries whatever name cuda.h gives the call.
struct entries {
#define WEIR_CUDA_FIELD(name, version) PFN_##name##_v##version name = nullptr;
  WEIR_CUDA_ENTRIES(WEIR_CUDA_FIELD)
#undef WEIR_CUDA_FIELD
};

struct loaded {
  entries const* api = nullptr;  // null: no usable driver
  std::string why;               // then
};
// Loads libcuda.so.1 and looks every entry up. Calls none of them.
// The library stays loaded for the life of the process.
loaded const& load();

code meaning_of(CUresult) noexcept;
inline status to_status(CUresult r) noexcept {
  if (r == CUDA_SUCCESS) [[likely]] return {};
  return {meaning_of(r), static_cast<int>(r)};
}
std::string describe(CUresult);  // for a person who asks why there is no GPU

// Fork and exit. Called after cuInit: what is registered last runs first at exit,
// so the flag is up before libcuda goes.
void watch_for_exit() noexcept;
code refusal_of_process() noexcept;  // forked, unloading or ok

}  // namespace weir::driver::cuda
