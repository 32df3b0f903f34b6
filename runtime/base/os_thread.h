// The end of a thread, after its thread_local values.
// Threads: any.
#pragma once

namespace weir::os {

// Calls run after the calling thread has destroyed its thread_local values, and again if run asks again, a
// few times. Not in the thread that ends the process. Requires: the same function each time.
void run_after_thread_locals(void (*run)(void*)) noexcept;

}  // namespace weir::os
