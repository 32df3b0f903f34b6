// Where in the machine pages of the host lie.
// Threads: any.
#pragma once
#include <cstddef>

namespace weir::os {

// Pages that are touched there from now on come from that NUMA node while it has some. Page-aligned. false: the system would not say
// so, and nothing is lost. A node below 0 is none: nothing is asked.
bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept;

}  // namespace weir::os
