// weir/cuda_mr.h: memory resources of CCCL (<cuda/memory_resource>), which RMM and cuDF take. Header only:
// weir itself does not need CCCL. Before CCCL 3.1 the concepts are experimental, so this header comes before
// the program's first CCCL header, or the program defines LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE.
// Threads: any. The runtime is that of the calling thread.
#pragma once
#include <cuda/version>
#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#if defined(_CUDA__MEMORY_RESOURCE_RESOURCE_H)
#error "include weir/cuda_mr.h before CCCL's headers, or define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"
#endif
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>
#if __has_include(<cuda/stream>)
#include <cuda/stream>
#else
#include <cuda/stream_ref>
#endif

#include "weir/memory.h"
#include "weir/stream_of.h"
#if !defined(WEIR_WITHOUT_RMM) && __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#define WEIR_MR_NAMESPACE with_rmm
#else
#define WEIR_MR_NAMESPACE without_rmm
#endif

namespace weir::mr {
inline namespace WEIR_MR_NAMESPACE {  // a file that finds RMM and one that does not have different resources

// A resource of device memory (device_resource), or of page-locked host memory that streams use
// (pinned_resource). Made with a device, it is of that device. Otherwise each call is for the device of the
// stream that it names; where that does not tell, for the device that is current in CUDA (cudaSetDevice).
// Two resources are equal if both are of one device, or both of none. Whichever is named, a free under any
// device and by any resource is right. Both generations of CCCL's names are there; those of 3.1 come first.
// A stream exists while a call names it, and may end before its memory is freed: then the free names another
// stream, or none. A free that names a stream which has ended waits for all devices, if CUDA refuses the
// handle; what CUDA itself does with one is undefined.
// Throws: invalid_use (a stream of another device, an alignment that is no power of two or above 2 MiB),
// device_lost, driver_error. Out of memory, whatever the size: weir::out_of_memory, which is a std::bad_alloc
// too. Where <rmm/error.hpp> is found, it is as RMM's: rmm::out_of_memory, rmm::bad_alloc for an alignment, and
// null for zero bytes. These errors are in librmm: a program that does not link it defines WEIR_WITHOUT_RMM.
template <memory_kind Kind>
class basic_resource {
  static_assert(Kind != memory_kind::pageable, "streams cannot use pageable memory: see weir/pmr.h");

 public:
  static constexpr size_t default_alignment = 256;  // bytes, as cudaMalloc's; whatever less is asked for

  basic_resource() noexcept = default;
  // `gpu` is weir's current device of now. Throws: invalid_use (cpu, no such device)
  explicit basic_resource(weir::device on, source_location at = source_location::current())
      : device_(default_stream(on, at).device()) {}
  // Of a resource of no device: the one that is current in CUDA now. Throws: driver_error
  weir::device device(source_location at = source_location::current()) const {
    return device_ == gpu ? detail::device_in_cuda(at) : device_;
  }

  // Work of the stream may use the memory at once, work of others after it.
  [[nodiscard]] void* allocate(::cuda::stream_ref s, size_t bytes, size_t alignment = default_alignment,
                               source_location at = source_location::current()) {
    return translated(bytes, [&]() -> void* {
      stream_ref const home = detail::stream_of(device_, s.get(), at);
      if constexpr (Kind == memory_kind::device)
        return weir::allocate(home, bytes, raised(alignment), at);
      else
        return pinned_block(bytes, raised(alignment), at);  // it is handed out idle
    });
  }
  // The memory serves others after the work enqueued on the stream so far, which may be of another device.
  // Throws: invalid_use (freed twice, no block of weir), driver_error. CCCL's any_resource and resource_ref end
  // the process then, with this error as the last word.
  void deallocate(::cuda::stream_ref s, void* p, size_t, size_t = default_alignment,
                  source_location at = source_location::current()) {
    freed([&] { detail::deallocate_on(device_, s.get(), p, at); });
  }

  // Host and all streams may use the memory at once. Blocks: device memory, until the work of the device's
  // default stream is done.
  [[nodiscard]] void* allocate_sync(size_t bytes, size_t alignment = default_alignment) {
    return allocate(bytes, alignment, in_cccl);
  }
  // Requires: no work uses the memory any more. Throws: as deallocate
  void deallocate_sync(void* p, size_t bytes, size_t alignment = default_alignment) {
    deallocate(p, bytes, alignment, in_cccl);
  }

  // CCCL 3.0
  [[nodiscard]] void* allocate(size_t bytes, size_t alignment = default_alignment,
                               source_location at = source_location::current()) {
    return translated(bytes, [&]() -> void* {
      if constexpr (Kind == memory_kind::pinned) {
        (void)detail::device_of_call(device_, at);  // one is current in CUDA from now on, as after cudaMallocHost
        return pinned_block(bytes, raised(alignment), at);
      } else {
        stream_ref const home = default_stream(detail::device_of_call(device_, at), at);
        buffer b(home, bytes, raised(alignment), at);
        home.synchronize(at);
        return b.release();
      }
    });
  }
  void deallocate(void* p, size_t, size_t = default_alignment, source_location at = source_location::current()) {
    freed([&] { weir::deallocate(p, at); });
  }
  [[nodiscard]] void* allocate_async(size_t bytes, size_t alignment, ::cuda::stream_ref s,
                                     source_location at = source_location::current()) {
    return allocate(s, bytes, alignment, at);
  }
  [[nodiscard]] void* allocate_async(size_t bytes, ::cuda::stream_ref s,
                                     source_location at = source_location::current()) {
    return allocate(s, bytes, default_alignment, at);
  }
  void deallocate_async(void* p, size_t bytes, size_t alignment, ::cuda::stream_ref s,
                        source_location at = source_location::current()) {
    deallocate(s, p, bytes, alignment, at);
  }
  void deallocate_async(void* p, size_t bytes, ::cuda::stream_ref s, source_location at = source_location::current()) {
    deallocate(s, p, bytes, default_alignment, at);
  }

  friend bool operator==(basic_resource const& a, basic_resource const& b) noexcept { return a.device_ == b.device_; }
  friend constexpr void get_property(basic_resource const&, ::cuda::mr::device_accessible) noexcept {}
  friend constexpr void get_property(basic_resource const&, ::cuda::mr::host_accessible) noexcept
      requires(Kind == memory_kind::pinned) {}

 private:
  // CCCL 3.2 and 3.3 take the addresses of the _sync functions: they have no parameter for the caller's line.
  static constexpr source_location in_cccl{"a memory resource", "", 0};
  // RMM's adaptors ask for 1 and rely on 256. What is no power of two is left to be refused.
  static constexpr size_t raised(size_t alignment) noexcept {
    bool const is_power = (alignment & (alignment - 1)) == 0;
    return is_power && alignment < default_alignment ? default_alignment : alignment;
  }
  static void* pinned_block(size_t bytes, size_t alignment, source_location at) {
    return buffer(bytes, {.on = cpu, .kind = memory_kind::pinned, .alignment = alignment}, at).release();
  }

  template <class Call>
  static void* translated([[maybe_unused]] size_t bytes, Call call) {
#if !defined(WEIR_WITHOUT_RMM) && __has_include(<rmm/error.hpp>)
    if (bytes == 0)
      return nullptr;  // as RMM's own resources
    try {
      return call();
    } catch (out_of_memory const& e) {
      throw ::rmm::out_of_memory(e.what());
    } catch (invalid_use const& e) {
      // RMM's own resources say so of an alignment that they do not have
      int const id = static_cast<int>(e.id());
      if (id == 160 || id == 161 || id == 215)
        throw ::rmm::bad_alloc(e.what());
      throw;
    }
#else
    return call();
#endif
  }
  template <class Call>
  static void freed(Call call) {
    try {
      call();
    } catch (device_lost const&) {}  // its memory is gone
  }

  weir::device device_ = gpu;  // gpu: of none
};

using device_resource = basic_resource<memory_kind::device>;
using pinned_resource = basic_resource<memory_kind::pinned>;

}  // namespace WEIR_MR_NAMESPACE
}  // namespace weir::mr
#undef WEIR_MR_NAMESPACE
