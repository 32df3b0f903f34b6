// Events of the whole process: its end, and a fork.
// Threads: any.
#pragma once
#include "runtime/base/sync.h"

namespace weir {
namespace detail {
extern base::atomic<bool> forked;
// on a cache line of its own: every allocation reads it
struct alignas(128) versioned {
  base::atomic<std::uint64_t> version{2};
};
extern versioned world;
}

// Begins to watch; idempotent. Requires: called before the first driver is made.
void watch_process() noexcept;
// True from the first driver of this process on, and in its children.
bool driver_was_made() noexcept;
// True once the process has begun to end: destructors of statics then make no driver call.
bool process_is_ending() noexcept;
// True in a child forked from the process that began to watch.
inline bool process_was_forked() noexcept {
  return detail::forked.load(base::memory_order_relaxed);
}

// Cached knowledge of a thread about streams and memory is valid while this number is the same. Every event
// that may invalidate it changes the number: memory of a device comes or goes, a device is lost, a stream's
// registration ends, a fork. The number is even. It is odd while a recorder notes every allocation: the fast
// paths, which note nothing, are then closed by the check that they make anyway.
inline std::uint64_t fast_path_version() noexcept {
  return detail::world.version.load(base::memory_order_acquire);
}
inline void invalidate_fast_paths() noexcept {
  detail::world.version.fetch_add(2);
}
// Requires: yes and no alternate
inline void note_all_blocks(bool yes) noexcept {
  yes ? detail::world.version.fetch_add(1) : detail::world.version.fetch_sub(1);
}

}  // namespace weir
