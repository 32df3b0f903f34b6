// Host pages for the pinned pool: mapped, huge if possible, touched by several threads, then registered.
// Threads: any.
#pragma once
#include <cstddef>

#include "runtime/driver/driver.h"

namespace weir::streams {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

struct host_pages {
  std::byte* base = nullptr;  // aligned to huge_page
  std::size_t bytes = 0;      // a multiple of the page size
};

// Threads touch the pages just ahead of the registration, which alone faults them in on one thread. node:
// preferred NUMA node; -1: any. Returns: out_of_memory if the system or the driver allows no more.
// Requires: `bytes` is a multiple of the page size.
// Blocks: perhaps until all work so far is done, as driver::pin.
driver::result<host_pages> take_pages(driver::driver&, std::size_t bytes, int node);

// Requires: no device's work uses them. Ensures: if refused, the pages stay mapped and registered.
driver::status return_pages(driver::driver&, host_pages);

}  // namespace weir::streams
