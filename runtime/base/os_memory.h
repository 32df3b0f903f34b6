// What memory the host has to give to this process.
// Threads: any.
#pragma once
#include <cstddef>
#include <optional>

namespace weir::os {

// Of all there is, or of what this process' control groups (cgroup v1 and v2) may have, whichever is less.
// Available: what can be taken without swapping; file caches are given up for it.
struct host_memory {
  std::size_t total = 0, available = 0;  // bytes
};

// Now. Costs some 50 us: files of the kernel are read. `root`:
// the folder in which proc and sys are looked for.
// Returns: nothing where the system does not say.
std::optional<host_memory> memory_available(char const* root = "") noexcept;

// A test may say what memory_available answers; null, as it is unless a test says so: the system is asked.
// Threads: any; set while nobody else is inside weir.
using memory_teller = std::optional<host_memory> (*)() noexcept;
void memory_told_by(memory_teller) noexcept;

}  // namespace weir::os
