// Where in the machine pages of the host lie, and which processors are near them.
// Threads: any.
#pragma once
#include <cstddef>
#include <vector>

namespace weir::os {

// Pages that are touched there from now on come from that NUMA node while it has some. Page-aligned. false:
// the system would not say so, and nothing is lost. A node below 0 is none: nothing is asked.
bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept;

// Makes the pages be there, as writing to each would, in one call. Page-aligned. false: there is no such
// call, or no memory; some may be there.
bool make_present(void* at, std::size_t bytes) noexcept;

// Those of processors_near(node) that this process may run on. Empty:
// not known, or as good as all that it may run on are near.
std::vector<int> usable_processors_near(int numa_node);

// From now on. false: the system would not, and the thread goes on where it likes.
bool keep_this_thread_on(std::vector<int> const& processors) noexcept;

// What stands behind all of these but make_present. A test may put a machine with other nodes there; null, as
// it is unless a test says so: the system is asked. Threads: any; set while nobody else is inside weir.
class nodes {
 public:
  virtual ~nodes() = default;
  virtual bool prefer(void* at, std::size_t bytes, int numa_node) noexcept = 0;
  virtual std::vector<int> near(int numa_node) = 0;  // processors
  virtual std::vector<int> allowed() = 0;            // processors that this process may run on
  virtual bool keep_on(std::vector<int> const&) noexcept = 0;
};
void nodes_by(nodes*) noexcept;

}  // namespace weir::os
