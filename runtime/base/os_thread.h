// The end of a thread, after all that is thread_local.
// Threads: any.
#pragma once

namespace weir::os {

// Runs it when the calling thread has destroyed what is thread_local; again if that asks again, a few times.
// Not in the thread that ends the process. Requires: the same function each time.
void run_after_thread_locals(void (*run)(void*)) noexcept;

}  // namespace weir::os
