// Pages of the host for the pinned pool: mapped, huge where the system gives them, touched by several
// threads, registered with the driver.
// Threads: any.
#pragma once
#include <cstddef>

#include "runtime/driver/driver.h"

namespace weir::streams {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

struct host_pages {
  std::byte* base = nullptr;  // at a multiple of huge_page
  std::size_t bytes = 0;      // a multiple of the system's page
};

// Registering faults every page in by one thread; touching by many, a moment ahead of it, makes 1 GiB in a
// tenth of the time. The pages lie on that node, where there is room; -1: where the system likes.
// out_of_memory: the system has no pages left, or the driver cannot lock so many.
// Blocks: perhaps until all work given so far is done, as driver::pin may.
driver::result<host_pages> take_pages(driver::driver&, std::size_t bytes, int node);

// Requires: no work of any device still uses them. Ensures:
// when refused, the pages stay mapped and registered.
driver::status return_pages(driver::driver&, host_pages);

}  // namespace weir::streams
