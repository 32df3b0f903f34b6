// What the process does first when it ends, by exit() or by a return from main.
// Threads: any.
#pragma once

namespace weir {

// Once process_is_ending() is true, `first` runs before exit handlers and destructors that were registered before
// watch_process(), and before those of libraries. It runs in the thread that ends the process, and not in a forked
// child. One function alone is kept.
void run_at_process_end(void (*first)()) noexcept;

}  // namespace weir
