// What happens to the process as a whole: it ends, or it was forked.
// Threads: any.
#pragma once

namespace weir {

// Begins to watch; idempotent. Called before the first driver is made.
void watch_process() noexcept;
// True once the process has begun to end: destructors of statics make no driver call any more.
bool process_is_ending() noexcept;
// True in a child forked from the process that began to watch.
bool process_was_forked() noexcept;

}  // namespace weir
