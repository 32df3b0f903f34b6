// Finds libcuda at run time, translates its results, and keeps the flags of fork and exit.
// Threads: any.
#include "runtime/driver/cuda/symbols.h"

#include <cstdlib>

#include "runtime/base/os_library.h"
#include "runtime/base/process.h"
#include "runtime/base/sync.h"

namespace weir::driver::cuda {
namespace {

loaded find_all() {
  void* const library = os::load_library("libcuda.so.1");
  if (!library)
    return {nullptr, "libcuda.so.1 not found: no NVIDIA driver here"};
  auto const find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(os::find_symbol(library, "cuGetProcAddress_v2"));
  if (!find)
    return {nullptr, "the NVIDIA driver is older than CUDA 12.0"};
  static entries table;
  auto const look_up = [&](char const* name, int version) {
    void* entry = nullptr;
    CUdriverProcAddressQueryResult found{};
    bool const ok = find(name, &entry, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) == CUDA_SUCCESS;
    return ok && found == CU_GET_PROC_ADDRESS_SUCCESS ? entry : nullptr;
  };
#define WEIR_CUDA_LOOK_UP(name, version)                                           \
  table.name = reinterpret_cast<PFN_##name##_v##version>(look_up(#name, version)); \
  if (!table.name)                                                                 \
    return {nullptr,                                                               \
            std::string("the NVIDIA driver is too old: libcuda.so.1 has no ") + #name + " of version " #version};
  WEIR_CUDA_ENTRIES(WEIR_CUDA_LOOK_UP)
#undef WEIR_CUDA_LOOK_UP
  return {&table, {}};
}

}  // namespace

loaded const& load() {
  static loaded const* const once = new loaded(find_all());  // never destroyed: used until the process has ended
  return *once;
}

// Long: one case for each result of CUDA that means more than "failed".
code meaning_of(CUresult r) noexcept {
  switch (static_cast<int>(r)) {
    case CUDA_SUCCESS: return code::ok;
    case CUDA_ERROR_NOT_READY: return code::not_ready;
    case CUDA_ERROR_OUT_OF_MEMORY: return code::out_of_memory;

    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_NOT_MAPPED:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: return code::invalid;

    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_ILLEGAL_STATE:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: return code::not_permitted;

    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: return code::not_supported;

    // Sticky: cuda.h says, or the error implies, that the device is unusable until the process ends.
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case 226:  // CUDA_ERROR_CONTAINED, unknown to older toolkits
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return code::lost;

    case CUDA_ERROR_DEINITIALIZED: return code::unloading;
    default: return code::failed;
  }
}

std::string describe(CUresult r) {
  // A name where a person without a GPU needs one; else the number, which NVIDIA documents.
  switch (static_cast<int>(r)) {
    case CUDA_ERROR_NO_DEVICE: return "no CUDA device is visible (error 100)";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "CUDA did not start; a fork of a process that used CUDA cannot use it (error 3)";
    case CUDA_ERROR_STUB_LIBRARY: return "libcuda.so.1 is the toolkit's stub, not a driver (error 34)";
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return "the GPUs are busy or in exclusive use (error 46)";
    case CUDA_ERROR_SYSTEM_NOT_READY: return "the system is not ready: check that the fabric manager runs (error 802)";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "the kernel's driver and libcuda.so.1 are of different versions (error 803)";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: return "libcuda.so.1 does not support this GPU (error 804)";
    default: return "CUDA error " + std::to_string(static_cast<int>(r));
  }
}

namespace {
constinit base::atomic<bool> ending{false};
}  // namespace

void watch_for_exit() noexcept {
  watch_process();
  static bool const once = std::atexit([] { ending.store(true); }) == 0;
  static_cast<void>(once);
}

code refusal_of_process() noexcept {
  if (process_was_forked())
    return code::forked;
  return ending.load(base::memory_order_relaxed) || process_is_ending() ? code::unloading : code::ok;
}

}  // namespace weir::driver::cuda
