// weir/pmr.h: std::pmr::memory_resource over host memory, page-locked or pageable, for containers of the
// standard library: std::pmr::vector<float> v(weir::pmr::pinned_memory());
// Threads: any.
#pragma once
#include <cstdlib>
#include <memory_resource>

#include "weir/memory.h"

namespace weir::pmr {

// Page-locked memory of the calling thread's runtime; weir::pinned_allocator is the same for one type. A
// container may end or grow while weir::copy or launch still uses its memory.
// Requires: the runtime outlives the containers; work that weir does not know is complete when they end.
// Throws: allocate: out_of_memory; deallocate: invalid_use (freed twice,
// no block of weir), which ends the process in a container's destructor.
class pinned_resource final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t alignment) override {
    return buffer(bytes, {.on = cpu, .kind = memory_kind::pinned, .alignment = alignment}).release();
  }
  void do_deallocate(void* p, size_t, size_t) override { weir::deallocate(p); }
  bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    return dynamic_cast<pinned_resource const*>(&other) != nullptr;
  }
};

// Memory of the C library, aligned to 64 B at least. Throws: as pinned_resource, and invalid_use for an
// alignment above 2 MiB; a wrong free is not detected.
class pageable_resource final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t alignment) override {
    return buffer(bytes, {.on = cpu, .kind = memory_kind::pageable, .alignment = alignment}).release();
  }
  void do_deallocate(void* p, size_t, size_t) override { std::free(p); }
  bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    return dynamic_cast<pageable_resource const*>(&other) != nullptr;
  }
};

// One of each for the process; they are never destroyed.
inline pinned_resource* pinned_memory() noexcept {
  static pinned_resource one;
  return &one;
}
inline pageable_resource* pageable_memory() noexcept {
  static pageable_resource one;
  return &one;
}

}  // namespace weir::pmr
