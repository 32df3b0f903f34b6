// How much memory the host can give to this process.
// Threads: any.
#pragma once
#include <cstddef>
#include <optional>

namespace weir::os {

// The smaller of the host's memory and the limits of this process's control groups (cgroup v1 and v2).
// Available: what can be allocated without swapping; file caches count as available.
struct host_memory {
  std::size_t total = 0, available = 0;  // bytes
};

// Costs about 50 us, because it reads files of the kernel. `root`: the folder that holds proc and sys.
// Returns: none if the system does not say.
std::optional<host_memory> memory_available(char const* root = "") noexcept;

// Replaces the answer of memory_available in a test; null (the default): the system answers.
// Threads: any; set while no other thread is inside weir.
using memory_teller = std::optional<host_memory> (*)() noexcept;
void memory_told_by(memory_teller) noexcept;

}  // namespace weir::os
