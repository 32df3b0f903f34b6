// What libweir_torch.so tells the allocator that is compiled against one release of PyTorch (allocator.cpp). Plain
// types only: both sides may use other versions of the C++ library's classes.
// Threads: any. No function throws but weir_torch_init() and weir_torch_begin_pool().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

struct CUstream_st;

extern "C" {

struct weir_torch_block {
  void* base;
  std::size_t bytes;  // as requested, in the door's units
  int device;
  CUstream_st* stream;  // its home's handle; null: CUDA's legacy stream, or one that the door does not know
};

// Why an allocation failed. Bytes. text: valid until the thread's next call that fails
struct weir_torch_failure {
  int out_of_memory;                                       // 0: another error
  std::size_t allocated, reserved, free, capacity, limit;  // limit 0: none
  char const* text;
};

struct weir_torch_count {
  std::int64_t current, peak, allocated, freed;
};
enum { weir_torch_all, weir_torch_small, weir_torch_large, weir_torch_sizes };
struct weir_torch_statistics {
  weir_torch_count allocation[weir_torch_sizes], segment[weir_torch_sizes], active[weir_torch_sizes],
      inactive_split[weir_torch_sizes], allocated_bytes[weir_torch_sizes], reserved_bytes[weir_torch_sizes],
      active_bytes[weir_torch_sizes], inactive_split_bytes[weir_torch_sizes], requested_bytes[weir_torch_sizes];
  std::int64_t retries, out_of_memory, handles_made, handles_released;
};

struct weir_torch_piece {  // of a segment
  std::uintptr_t address;
  std::size_t bytes, requested;  // requested: 0 unless it is allocated
  int is_allocated, is_pending;
};
struct weir_torch_segment {
  int device;
  std::uintptr_t address;
  std::size_t bytes;
  CUstream_st* stream;
  int is_small;
  unsigned long long pool[2];  // PyTorch's id of its pool; 0, 0: of none
  std::size_t pieces;
  weir_torch_piece const* piece;
};

// Null: the failure tells why.
void* weir_torch_try_alloc(std::size_t bytes, int device, CUstream_st*, weir_torch_failure const**) noexcept;
void weir_torch_free(void*, std::size_t, int, CUstream_st*) noexcept;
void weir_torch_record_stream(void*, CUstream_st*) noexcept;
void weir_torch_reset() noexcept;  // torch.cuda.empty_cache()
void* weir_torch_base_alloc(void*, std::size_t* bytes) noexcept;
void weir_torch_init(int devices);
int weir_torch_devices() noexcept;                             // of weir's runtime; 0: it has none, or fails
int weir_torch_find(void const*, weir_torch_block*) noexcept;  // 0: no live block of weir's
std::size_t weir_torch_largest(int device) noexcept;           // bytes that a block could have now
int weir_torch_statistics_of(int device, weir_torch_statistics*) noexcept;  // 0; else weir_torch_error() says why
int weir_torch_reset_peak(int device) noexcept;
int weir_torch_reset_accumulated(int device) noexcept;
void weir_torch_set_fraction(double, int device);
double weir_torch_get_fraction(int device) noexcept;
// Calls `tell` for each segment, by address. What it is given is valid during the call.
int weir_torch_segments(int device, void (*tell)(void* to, weir_torch_segment const*), void* to) noexcept;
char const* weir_torch_error() noexcept;
// Lets kernels and copies of `reader` use the memory of `owner`.
void weir_torch_open_memory(int owner, int reader) noexcept;

using weir_torch_pool_id = std::pair<unsigned long long, unsigned long long>;
void weir_torch_begin_pool(int device, weir_torch_pool_id, std::function<bool(CUstream_st*)>);
void weir_torch_end_pool(int device, weir_torch_pool_id) noexcept;
void weir_torch_release_pool(int device, weir_torch_pool_id) noexcept;
void weir_torch_hold_pool(int device, unsigned long long, unsigned long long);
int weir_torch_holds_of_pool(int device, unsigned long long, unsigned long long) noexcept;
int weir_torch_begun_of_pool(int device, unsigned long long, unsigned long long) noexcept;
// The pool that an allocation of this thread on the stream takes from now. 0: none
int weir_torch_pool_in_force(int device, CUstream_st*, unsigned long long id[2]) noexcept;

}  // extern "C"
