// What happens to the process as a whole: it ends, or it was forked.
// Threads: any.
#pragma once
#include "runtime/base/sync.h"

namespace weir {
namespace detail {
extern base::atomic<bool> forked;
// a line of its own: every allocation reads it
struct alignas(128) versioned { base::atomic<std::uint64_t> version{2}; };
extern versioned world;
}

// Begins to watch; idempotent. Called before the first driver is made.
void watch_process() noexcept;
// True once the process has begun to end: destructors of statics make no driver call any more.
bool process_is_ending() noexcept;
// True in a child forked from the process that began to watch.
inline bool process_was_forked() noexcept { return detail::forked.load(base::memory_order_relaxed); }


// What threads remember of streams and of memory, to go the short way next time, holds while this number
// stands. Whoever ends something that may be remembered changes it: memory of a device comes or goes, a
// device is lost, a stream's registration ends, a fork. Even; odd while every allocation is to be noted: then
// the shortest ways, which note nothing, are closed by the one look they take anyway.
inline std::uint64_t fast_path_version() noexcept { return detail::world.version.load(base::memory_order_acquire); }
inline void invalidate_fast_paths() noexcept { detail::world.version.fetch_add(2); }
// Requires: yes and no in turn
inline void note_all_blocks(bool yes) noexcept {
  yes ? detail::world.version.fetch_add(1) : detail::world.version.fetch_sub(1);
}

}  // namespace weir
