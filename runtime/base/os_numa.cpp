// mbind(2), without the library that wraps it; and pages brought in at once.
// Threads: any.
#include "runtime/base/os_numa.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weir::os {

bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept {
  constexpr int preferred = 1;  // MPOL_PREFERRED
  constexpr int bits = 64;
  if (numa_node < 0 || numa_node >= bits) return false;
  unsigned long const mask = 1UL << numa_node;
  return ::syscall(SYS_mbind, at, bytes, preferred, &mask, static_cast<unsigned long>(bits) + 1, 0U) == 0;
}

bool make_present(void* at, std::size_t bytes) noexcept {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE of Linux 5.14
  return ::madvise(at, bytes, populate_write) == 0;
}

}  // namespace weir::os
