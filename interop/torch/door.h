// What the files of libweir_torch share: the streams of other libraries, and texts of errors.
// Threads: any.
#pragma once
#include <exception>
#include <optional>
#include <string>

#include "interop/torch/pools_of_torch.h"
#include "interop/torch/retained_streams.h"
#include "weir/memory.h"

#define WEIR_HOOK extern "C" __attribute__((visibility("default")))

namespace weir::interop {

// Blocks have the alignment of PyTorch's own, so that its kernels take the same paths and give the same bits.
// Small sizes are rounded to it: sizes of slabs that are multiples of 512 B are served without a lock.
inline constexpr std::size_t alignment = 512;
constexpr std::size_t rounded(std::size_t bytes) noexcept {
  return bytes > 32_KiB ? bytes : bytes ? (bytes + alignment - 1) & ~(alignment - 1) : alignment;
}

retained_streams& streams() noexcept;
pools_of_torch& pools() noexcept;
// Whether this process is a fork of one that used a device: its blocks are copies, which nothing gives back.
bool is_forked() noexcept;
// Where the Python program is, when a history records it; else the name of the door.
source_location line_of_program() noexcept;
extern std::atomic<bool> recording;
void name_library(std::string path_prefix);  // frames of files below it are not told

// Throws: as allocate() and retained_streams::of()
inline void* allocate_rounded(std::size_t bytes, int device, CUstream_st* handle) {
  constexpr source_location unknown;  // a line of Python
  stream_ref const home = streams().of(device, handle);
  auto const entered = pools().any_open() ? pools().entered(device, handle, home) : nullptr;
  std::optional<pool_guard> const inside = entered ? std::make_optional<pool_guard>(*entered) : std::nullopt;
  if (!recording.load(std::memory_order_relaxed)) [[likely]]
    return allocate(home, rounded(bytes), alignment, unknown);
  return allocate(home, rounded(bytes), alignment, line_of_program());
}

std::string text_of(std::exception_ptr);

}  // namespace weir::interop
