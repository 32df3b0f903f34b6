// Which of the machine's processors are cores of their own.
// Threads: any.
#pragma once
#include <vector>

namespace weir::os {

// Of each core that this process may run on one processor, in their order: threads that keep to one each
// share no core with each other. Empty: the system does not say which processors are one core.
std::vector<int> processors_of_cores();

}  // namespace weir::os
