// What the files of libweir_torch share: the streams of other libraries, and texts of errors.
// Threads: any.
#pragma once
#include <atomic>
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

// What every allocation and free reads: one cache line.
struct alignas(64) state_at_hand {
  std::atomic<retained_streams const*> streams{nullptr};  // null: not made yet
  std::atomic<bool> forked{false}, recording{false};
  std::atomic<int> open_pools{0};
};
extern constinit state_at_hand at_hand;

retained_streams& streams() noexcept;
pools_of_torch& pools() noexcept;
// Whether this process is a fork of one that used a device: its blocks are copies, which nothing gives back.
inline bool is_forked() noexcept {
  return at_hand.forked.load(std::memory_order_relaxed);
}
// Where the Python program is, when a history records it; else the name of the door.
source_location line_of_program() noexcept;
// The same if this thread has Python's lock; else no file name. Blocks: no
source_location line_without_waiting() noexcept;
// Of this thread's last call of line_of_program. Blocks: no
source_location last_line_of_program() noexcept;
void name_library(std::string path_prefix);  // frames of files below it are not told

// Null: allocate_rounded() has more to do.
[[gnu::always_inline]] inline void* allocate_quickly(std::size_t bytes, int device, CUstream_st* handle) noexcept {
  retained_streams const* const all = at_hand.streams.load(std::memory_order_acquire);
  if (!all || is_forked() || at_hand.recording.load(std::memory_order_relaxed) ||
      at_hand.open_pools.load(std::memory_order_relaxed)) [[unlikely]]
    return nullptr;
  external_stream const* const home = all->registered(device, handle);
  return home ? detail::allocate_quickly(*home, rounded(bytes), alignment) : nullptr;
}
// `home` is the stream of that handle. Throws: as allocate()
inline void* allocate_rounded(std::size_t bytes, int device, CUstream_st* handle, stream_ref home) {
  constexpr source_location unknown;  // a line of Python
  bool const any_open = at_hand.open_pools.load(std::memory_order_relaxed);
  auto const entered = any_open ? pools().entered(device, handle, home) : nullptr;
  std::optional<pool_guard> const inside = entered ? std::make_optional<pool_guard>(*entered) : std::nullopt;
  if (!at_hand.recording.load(std::memory_order_relaxed)) [[likely]]
    return allocate(home, rounded(bytes), alignment, unknown);
  return allocate(home, rounded(bytes), alignment, line_of_program());
}

std::string text_of(std::exception_ptr);
void require_no_fork();  // Throws: std::runtime_error in a fork of a process that used a device

// The text that weir_torch_error() returns: of this thread's last call of a function that answers instead of throwing.
std::string& error_of_this_thread() noexcept;
template <class Do, class Answer>
Answer guarded(Do act, Answer failed) noexcept {
  try {
    error_of_this_thread().clear();
    return act();
  } catch (...) {
    error_of_this_thread() = text_of(std::current_exception());
    return failed;
  }
}
template <class Do>
int done(Do act) noexcept {
  return guarded(
      [&] {
        act();
        return 0;
      },
      -1);
}

}  // namespace weir::interop
