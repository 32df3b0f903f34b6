// weir/caching_device_allocator.h: the member functions of cub::CachingDeviceAllocator, which CUB has
// deprecated, on weir's pool.
// Threads: any, except SetMaxCachedBytes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/stream_of.h"

namespace weir {

// Memory is cached for all users of weir in the process, and the stream of DeviceAllocate is the block's
// home: after DeviceFree it serves that stream at once, others after its work. As with CUB's, the stream exists
// until DeviceFree; it may end then. Bins are not used: weir rounds
// by its size classes. The end of an allocator frees nothing.
// Errors are CUDA's codes; nothing is thrown. With `debug` the words of weir's error go to stderr.
class caching_device_allocator {
 public:
  static constexpr unsigned int INVALID_BIN = static_cast<unsigned int>(-1);
  static constexpr size_t INVALID_SIZE = static_cast<size_t>(-1);
  static constexpr int INVALID_DEVICE_ORDINAL = -1;

  caching_device_allocator(unsigned int /*bin_growth*/, unsigned int /*min_bin*/ = 1,
                           unsigned int /*max_bin*/ = INVALID_BIN, size_t max_cached_bytes = INVALID_SIZE,
                           bool /*skip_cleanup*/ = false)
      : most_cached_(max_cached_bytes) {}
  // Caches without a limit; CUB's default is 6 MiB.
  explicit caching_device_allocator(bool /*skip_cleanup*/ = false, bool debug = false) : debug_(debug) {}
  caching_device_allocator(caching_device_allocator const&) = delete;

  // After a free that leaves more cached bytes on its device, all cached memory of the device goes back to
  // the driver. Requires: no other thread uses the allocator
  cudaError_t SetMaxCachedBytes(size_t bytes) {
    most_cached_ = bytes;
    return cudaSuccess;
  }

  // Without a device: CUDA's current one. A null stream is CUDA's legacy stream. Zero bytes are valid. On an
  // error *d_ptr is null.
  cudaError_t DeviceAllocate(int device, void** d_ptr, size_t bytes, cudaStream_t active_stream = nullptr) {
    if (!d_ptr)
      return cudaErrorInvalidValue;
    *d_ptr = nullptr;
    return code_of([&] {
      int const on = device == INVALID_DEVICE_ORDINAL ? detail::device_in_cuda().index() : device;
      if (on < 0 || on >= device_count())
        return cudaErrorInvalidDevice;
      *d_ptr = weir::allocate(detail::stream_of(on, active_stream), bytes, 256);
      return cudaSuccess;
    });
  }
  cudaError_t DeviceAllocate(void** d_ptr, size_t bytes, cudaStream_t active_stream = nullptr) {
    return DeviceAllocate(INVALID_DEVICE_ORDINAL, d_ptr, bytes, active_stream);
  }

  // The address tells the device. Null does nothing. cudaErrorInvalidValue: freed twice, no block of weir
  cudaError_t DeviceFree(int /*device*/, void* d_ptr) { return DeviceFree(d_ptr); }
  cudaError_t DeviceFree(void* d_ptr) {
    return code_of([&] {
      auto const block = most_cached_ == INVALID_SIZE ? std::nullopt : find_block(d_ptr);
      detail::deallocate_at_home(d_ptr);
      if (block && block->on.is_gpu() && memory_reserved(block->on) - memory_allocated(block->on) > most_cached_)
        (void)empty_cache(block->on);
      return cudaSuccess;
    });
  }

  // Blocks: until freed memory is complete.
  cudaError_t FreeAllCached() {
    return code_of([] {
      for (int d = 0; d < device_count(); ++d)
        (void)empty_cache(d);
      return cudaSuccess;
    });
  }

 private:
  template <class Call>
  cudaError_t code_of(Call call) const noexcept {
    try {
      return call();
    } catch (out_of_memory const& e) {
      return told(e.what(), cudaErrorMemoryAllocation);
    } catch (invalid_use const& e) {
      return told(e.what(), cudaErrorInvalidValue);
    } catch (not_supported const& e) {
      return told(e.what(), cudaErrorNotSupported);
    } catch (driver_error const& e) {
      return told(e.what(), e.code() ? static_cast<cudaError_t>(e.code()) : cudaErrorUnknown);
    } catch (std::exception const& e) {
      return told(e.what(), cudaErrorUnknown);
    }
  }
  cudaError_t told(char const* words, cudaError_t code) const noexcept {
    if (debug_)
      std::fprintf(stderr, "weir: caching_device_allocator: %s\n", words);
    return code;
  }

  size_t most_cached_ = INVALID_SIZE;
  bool debug_ = false;
};

}  // namespace weir
