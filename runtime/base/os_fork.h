// A child process of this one.
// Threads: one that forks, while no other runs.
#pragma once
#include <optional>

namespace weir::os {

// Buffered output is written before: no child writes it again.
// Returns: 0 in the child, in the parent the child's number. -1: refused
int fork_child() noexcept;
// Blocks: until the child has ended. Returns: its exit status; of one that a signal killed, minus that signal; none:
// the system has not kept it
std::optional<int> status_of_child(int child) noexcept;
[[noreturn]] void exit_process(int status);  // with exit handlers

}  // namespace weir::os
