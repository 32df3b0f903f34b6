// weir/thrust.h: memory of weir for Thrust's vectors and for the temporary memory of its algorithms. Files
// that include it are compiled by nvcc. Memory of simulated devices can be taken, but Thrust runs on GPUs.
// Threads: any; one allocator on one thread at a time.
#pragma once
#if !defined(__CUDACC__)
#error "weir/thrust.h: Thrust's algorithms are compiled by nvcc: name the file in weir_kernels(target file.cu)"
#endif
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>

#include <type_traits>

#include "weir/memory.h"

namespace weir {

// An allocator bound to a stream when it is made: Thrust names none when it frees. The stream becomes the
// home of the memory, so work of the stream may still run when memory goes back. A borrowed stream is for
// allocators that end before it; keep an external_stream for others.
// A vector fills and copies its elements on this stream and waits for that. Everything else that Thrust does
// with a vector runs on CUDA's default stream unless a policy says otherwise: synchronize the stream before.
// Two vectors with allocators of different streams exchange elements by copies, except when moved or swapped:
// then the stream goes with the memory.
template <class T>
class thrust_allocator {
 public:
  using value_type = T;
  using pointer = ::thrust::device_ptr<T>;
  using const_pointer = ::thrust::device_ptr<T const>;
  using reference = ::thrust::device_reference<T>;
  using const_reference = ::thrust::device_reference<T const>;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  using system_type = std::remove_cvref_t<decltype(::thrust::cuda::par.on(nullptr))>;
  template <class U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  // Default: the current stream. Throws: as current_stream
  explicit thrust_allocator(source_location at = source_location::current()) : stream_(current_stream(gpu, at)) {}
  thrust_allocator(stream_ref on) noexcept : stream_(on) {}
  template <class U>
  thrust_allocator(thrust_allocator<U> const& other) noexcept : stream_(other.stream()) {}
  stream_ref stream() const noexcept { return stream_; }

  // Throws: invalid_use (a size that overflows), out_of_memory, device_lost, driver_error
  pointer allocate(size_type n, source_location at = source_location::current()) {
    if (n > max_size())
      throw invalid_use("thrust_allocator::allocate",
                        std::to_string(n) + " elements of " + std::to_string(sizeof(T)) + " B",
                        "The size has overflowed: check what it was made from", at, error_id{144});
    return pointer(static_cast<T*>(weir::allocate(stream_, n * sizeof(T), alignment, at)));
  }
  void deallocate(pointer p, size_type, source_location at = source_location::current()) {
    weir::deallocate(p.get(), at);
  }
  size_type max_size() const noexcept { return static_cast<size_t>(PTRDIFF_MAX) / sizeof(T); }
  // Where a vector's own fills and copies run. Throws: not_supported on a simulated device
  system_type& system() {
    policy_ = ::thrust::cuda::par.on(stream_.native());
    return policy_;
  }
  template <class U>
  bool operator==(thrust_allocator<U> const& other) const noexcept {
    return stream_ == other.stream();
  }

 private:
  static constexpr size_t alignment = 256;  // as cudaMalloc's; Thrust divides one block into several
  stream_ref stream_;
  system_type policy_;
};

// weir::device_vector<float> v(n): on the current stream; v(n, value, stream) on another.
template <class T>
using device_vector = ::thrust::device_vector<T, thrust_allocator<T>>;

// A policy for algorithms on the stream that return before they are done, with temporary memory on weir:
// thrust::sort(weir::par_nosync(s), v.begin(), v.end()). Results that an algorithm returns are waited for.
// Throws: not_supported on a simulated device
inline auto par_nosync(stream_ref s, source_location at = source_location::current()) {
  return ::thrust::cuda::par_nosync(thrust_allocator<std::byte>(s)).on(s.native(at));
}

}  // namespace weir
