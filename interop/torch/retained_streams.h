// The streams of other libraries, found by their handles.
// Each is registered with weir at its first use, for good: PyTorch's streams are made once and never destroyed.
// Streams that end before the process does are borrowed by each call that names them: those that were lent, and
// all that borrow() names.
// Threads: any; a registered stream is found without a lock.
// Requires: a stream that was not lent before its first use exists until the process ends.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "weir/stream.h"

namespace weir::interop {

class retained_streams {
 public:
  struct alignas(32) entry {  // half a cache line
    entry() noexcept {}
    entry(int on, CUstream_st* handle) : device(on), stream(weir::device(on), handle, source_location()) {}
    ~entry() {}
    std::atomic<std::uintptr_t> key{0};  // 0: not used yet; written last
    int device = 0;
    union {
      external_stream stream;  // never destroyed: PyTorch frees blocks until the process ends
    };
  };
  // Null is CUDA's legacy stream of that device.
  // Throws: invalid_use (a stream of another device), device_lost, driver_error
  stream_ref of(int device, CUstream_st* handle) {
    external_stream const* const known = registered(device, handle);
    return known ? *known : enrol(device, handle);
  }
  // The same for a library that may destroy the stream later: it is not registered.
  stream_ref borrow(int device, CUstream_st* handle);
  // Null: of() has more to do.
  external_stream const* registered(int device, CUstream_st* handle) const noexcept {
    entry const* const e = find(key_of(device, handle));
    return e && e->device == device ? &e->stream : nullptr;
  }
  // The stream of that handle on whatever device. The device of a new one is guessed first.
  // Throws: invalid_use (a stream of no device), and as of()
  stream_ref of_any_device(int guess, CUstream_st* handle);
  // The stream of this handle may end before the process, and CUDA gives the handle to later streams: it is
  // borrowed by the calls that name it, as CUDA's per-thread stream is. A registered stream stays registered.
  void lend(CUstream_st* handle);
  // Null: CUDA's legacy stream, or one that is not registered.
  CUstream_st* handle_of(std::uint64_t stream_id);
  // The only device that a stream was named on; -1: none yet, or several.
  int only_device() const noexcept { return only_device_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t places = 1024, most = places / 2;  // later streams are found under the lock
  // CUDA names the legacy stream by null or by 1. Addresses of streams are above these keys.
  static std::uintptr_t key_of(int device, CUstream_st* handle) noexcept {
    auto const h = reinterpret_cast<std::uintptr_t>(handle);
    return h > 1 ? h : 16 + static_cast<std::uintptr_t>(device);
  }
  static std::size_t place_of(std::uintptr_t key) noexcept { return (key * 0x9E3779B97F4A7C15u) >> 54; }
  entry const* find(std::uintptr_t key) const noexcept {
    for (std::size_t i = place_of(key);; i = (i + 1) % places) {
      std::uintptr_t const there = table_[i].key.load(std::memory_order_acquire);
      if (there == key) [[likely]]
        return &table_[i];
      if (!there)
        return nullptr;  // at most half of the places are used, so one is empty
    }
  }
  stream_ref enrol(int device, CUstream_st*);
  void open_to_others(int device);

  std::array<entry, places> table_;
  std::mutex lock_;  // of what follows, and of every change of the table
  std::size_t used_ = 0;
  std::unordered_map<std::uintptr_t, entry> beyond_;
  std::unordered_set<std::uintptr_t> lent_{2};  // cudaStreamPerThread is 2
  std::uint64_t devices_ = 0;                   // a bit for each device that a stream was named on
  std::atomic<int> only_device_{-1};
};

// Lets kernels and copies of `reader` use the memory of `owner`. A pair without a link stays as it is.
void open_memory(int owner, int reader);

}  // namespace weir::interop
