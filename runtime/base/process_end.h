// What the process does first when it ends, by exit() or by a return from main.
// Threads: any.
#pragma once

namespace weir {

// Once process_is_ending() is true, `runs` is called, before the exit handlers and destructors that were registered
// before this call. Those of a library that was loaded before are among them. The thread that ends the process calls
// it, once, and not in a forked child. A function that is known already changes nothing; two are kept.
void run_at_process_end(void (*runs)()) noexcept;

}  // namespace weir
