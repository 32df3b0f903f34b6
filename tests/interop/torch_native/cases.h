// What the cases share: weir installed as PyTorch's allocator, once a process.
// Threads: any.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace weir_torch_test {

namespace cca = c10::cuda::CUDACachingAllocator;
constexpr std::size_t mib = std::size_t{1} << 20, limit = 256 * mib;  // bytes of each device

inline cca::CUDAAllocator& weir() {
  static cca::CUDAAllocator& installed = []() -> cca::CUDAAllocator& {
    ::setenv("WEIR_CONF", "device_limit:256MiB", 1);
    void* const door = ::dlopen(WEIR_TORCH_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(door, ::dlerror());
    void* const native = ::dlopen(WEIR_TORCH_NATIVE, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(native, ::dlerror());
    auto* const install = reinterpret_cast<char const* (*)()>(::dlsym(native, "weir_torch_native_install"));
    char const* const too_late = install();
    TORCH_CHECK(!too_late, too_late);
    return *cca::get();
  }();
  return installed;
}

inline std::int64_t allocated() {
  return weir().getDeviceStats(0).allocated_bytes[0].current;
}

}  // namespace weir_torch_test
