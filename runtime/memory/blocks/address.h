// Addresses of a device, and the steps in which its memory is divided.
// Threads: any.
#pragma once
#include <cstddef>

#include "runtime/driver/driver.h"

namespace weir::memory {

using driver::address;
// bytes: no two blocks of an arena start in the same granule; a run has whole ones, unless it is short
inline constexpr std::size_t granule = 32 << 10;
inline constexpr std::size_t cell = 8 << 10;  // bytes: a cell is of one slab's run, or of none

// Requires: `to` is a power of two, as pages, granules, units and alignments are.
inline constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept {
  return (n + to - 1) & ~(to - 1);
}
inline constexpr std::size_t round_down(std::size_t n, std::size_t to) noexcept {
  return n & ~(to - 1);
}

struct address_range {
  address at = 0;
  std::size_t bytes = 0;
};

}  // namespace weir::memory
