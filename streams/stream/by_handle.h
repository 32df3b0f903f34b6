// Streams that callers name by CUDA's handle: from a C interface, or another library's allocator hook.
// Threads: any.
#pragma once
#include <array>

#include "runtime/base/process.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"

namespace weir::streams {

// The registered streams that a thread named lately. An entry holds while no registration ends, no runtime
// does, and the thread has the same runtime_guard. Invariant: `version` was read before the stream was looked
// up.
class handle_memo {
 public:
  // No driver call, no lock. Null: look it up. Requires: an explicit device
  static clock::stream_clock* find(int device, CUstream_st* handle) noexcept {
    entry const& e = value()->at(device, handle);
    if (e.handle != handle || e.device != device)
      return nullptr;
    return e.version == version() && e.guard == guarded_runtime() ? e.stream : nullptr;
  }
  static std::uint64_t version() noexcept { return fast_path_version() & ~std::uint64_t{1}; }
  static void note(int device, CUstream_st* handle, clock::stream_clock&, std::uint64_t version);

  // As `device`, for calls after which a device is current in CUDA: it is, as long as the entry is there.
  static constexpr int of_any_device = -2;  // the handle was named without a device
  static constexpr int of_device(int d) noexcept { return of_any_device - 1 - d; }
  static void forget_that_one_is_current() noexcept;

 private:
  struct entry {
    CUstream_st* handle = nullptr;
    clock::stream_clock* stream = nullptr;
    std::uint64_t version = 0;  // no version of the process
    runtime* guard = nullptr;
    int device = -1;
  };
  static constexpr std::size_t size = 64;
  entry const& at(int device, CUstream_st* handle) const noexcept {  // handles are addresses, or small numbers
    auto const n = reinterpret_cast<std::uintptr_t>(handle);
    return entries_[(n ^ n >> 6 ^ n >> 12 ^ static_cast<std::uintptr_t>(device)) % size];
  }
  static handle_memo const empty;
  static handle_memo const*& value() noexcept { return base::thread_pointer<handle_memo, &empty>::value; }
  static handle_memo& mine();  // made at a thread's first note

  std::array<entry, size> entries_{};
};
inline constinit handle_memo const handle_memo::empty{};

[[noreturn]] void throw_other_device(char const* operation, int device, source_location);
// Adopts the handle and registers it. Throws: as external_stream
clock::stream_clock& register_handle(runtime::impl&, int device, CUstream_st*, source_location,
                                     external_stream_options = {});
// Ends one registration of it; the last one ends its use. Throws: invalid_use (not registered)
void unregister_handle(runtime::impl&, int device, CUstream_st*, source_location);

}  // namespace weir::streams
