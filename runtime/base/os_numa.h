// Where in the machine pages of the host lie.
// Threads: any.
#pragma once
#include <cstddef>

namespace weir::os {

// Pages that are touched there from now on come from that NUMA node while it has some. Page-aligned. false: the system would not say
// so, and nothing is lost. A node below 0 is none: nothing is asked.
bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept;

// Makes the pages be there, as writing to each would, in one call. Page-aligned. false: there is no such call, or no memory; some may be there.
bool make_present(void* at, std::size_t bytes) noexcept;

}  // namespace weir::os
