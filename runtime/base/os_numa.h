// Host pages: their presence and NUMA nodes, and the processors near them. Processors that share no core.
// Threads: any.
#pragma once
#include <cstddef>
#include <vector>

namespace weir::os {

// Whether a fork gives the child a copy of a page that a device driver has pinned, and leaves the parent its own:
// Linux 5.12 and newer. Before, the next write of the parent moved the page.
bool forks_copy_pinned_pages() noexcept;

// Pages first touched from now on come from that NUMA node while it has some. Requires: page-aligned. False:
// the system refused, or numa_node < 0; the pages are usable either way.
bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept;

// Brings the pages in with one call, as a write to each would. Requires: page-aligned. False: not supported
// or no memory; some pages may be present.
bool make_present(void* at, std::size_t bytes) noexcept;

// The part of processors_near(node) that this process may run on. Empty: not known, or no restriction.
std::vector<int> usable_processors_near(int numa_node);

// Returns: one processor per core, of those that this process may run on, in order. Empty: not known.
std::vector<int> processors_of_cores();

// False: refused; the thread runs on any processor as before.
bool keep_this_thread_on(std::vector<int> const& processors) noexcept;

// Answers all of the above that names nodes or processors, except processors_of_cores. A test may install another
// machine.
// Null (the default): the system answers. Threads: any; set while no other thread is inside weir.
class nodes {
 public:
  virtual ~nodes() = default;
  virtual bool prefer(void* at, std::size_t bytes, int numa_node) noexcept = 0;
  virtual std::vector<int> near(int numa_node) = 0;  // processors
  virtual std::vector<int> allowed() = 0;            // to this process
  virtual bool keep_on(std::vector<int> const&) noexcept = 0;
};
void nodes_by(nodes*) noexcept;

}  // namespace weir::os
