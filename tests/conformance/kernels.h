// Kernels of the conformance suite on GPUs. Returns: a cudaError as int; -1 in a build without a toolkit.
// Threads: any. The calling thread's CUDA device must be the stream's.
#pragma once
#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct CUevent_st;

namespace weir::conformance {

struct device_log {  // pinned, so that the host can read it while a stream is held
  static constexpr std::uint32_t capacity = 4000;
  std::uint32_t count;
  std::uint32_t at[capacity];
};

int launch_append(CUstream_st*, device_log*, std::uint32_t x);
int launch_store(CUstream_st*, std::uint32_t* to, std::uint32_t value);
int launch_copy_word(CUstream_st*, std::uint32_t* to, std::uint32_t const* from);          // *to = *from
int launch_fill(CUstream_st*, std::uint32_t* to, std::uint32_t first, std::size_t count);  // to[i] = first + i
int launch_crash(CUstream_st*);  // CUDA error 700, which is sticky
int launch_spin(CUstream_st*, long long clocks);
int query_event(CUevent_st*);  // in the calling thread's own capture mode
int current_device();          // of the calling thread; -1: none
int load_kernels();            // so that no first launch falls into a measured interval

}  // namespace weir::conformance
