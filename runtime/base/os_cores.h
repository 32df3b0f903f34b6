// Processors that share no core.
// Threads: any.
#pragma once
#include <vector>

namespace weir::os {

// Returns: one processor per core, of those that this process may run on, in order. Empty: not known.
std::vector<int> processors_of_cores();

}  // namespace weir::os
