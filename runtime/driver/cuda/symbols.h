// CUDA's driver entry points, found at run time by name and version, and the meaning of their results.
// Threads: any; the table is filled once.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "runtime/driver/driver.h"

// Each name with the oldest version of its signature that suffices, so that drivers from 12.0 on work.
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
  X(cuStreamGetCaptureInfo, 11030)            \
  X(cuStreamGetCtx, 9020)                     \
  X(cuStreamGetFlags, 5050)                   \
  X(cuStreamGetId, 12000)                     \
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
  X(cuUserObjectCreate, 11030)                \
  X(cuUserObjectRelease, 11030)               \
  X(cuGraphRetainUserObject, 11030)           \
  X(cuGraphExecUpdate, 12000)                 \
  X(cuGraphLaunch, 10000)                     \
  X(cuGraphExecDestroy, 10000)                \
  X(cuGraphDestroy, 10000)

namespace weir::driver::cuda {

// ## keeps cuda.h from renaming the type; the field has the name that cuda.h gives the call.
struct entries {
#define WEIR_CUDA_FIELD(name, version) PFN_##name##_v##version name = nullptr;
  WEIR_CUDA_ENTRIES(WEIR_CUDA_FIELD)
#undef WEIR_CUDA_FIELD
};

struct loaded {
  entries const* api = nullptr;  // null: no usable driver
  std::string why;               // the reason, if api is null
};
// Loads libcuda.so.1 and looks up every entry; calls none. The library stays loaded.
loaded const& load();

code meaning_of(CUresult) noexcept;
inline status to_status(CUresult r) noexcept {
  if (r == CUDA_SUCCESS) [[likely]]
    return {};
  return {meaning_of(r), static_cast<int>(r)};
}
std::string describe(CUresult);  // why there is no GPU, for people

// Watches for fork and exit. Requires: called after cuInit. The last registered exit handler runs first, so
// that the flag is set before libcuda is unloaded.
void watch_for_exit() noexcept;
code refusal_of_process() noexcept;  // forked, unloading or ok

}  // namespace weir::driver::cuda
