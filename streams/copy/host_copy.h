// Copies between places of the host, by ways that differ in what they do to the caches.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weir::streams {

enum class stores : std::uint8_t {
  plain,          // as the C library does
  past_caches,    // whole lines go to memory without being read first, and push nothing else out of the caches
  // plain, and what was written is handed on from the core's own caches to the one that all share,
  // where there is a way to say so
  to_shared_cache,
};

// Requires: the ranges do not overlap. Ensures:
// what was written is seen by whoever sees what this thread does next, an engine too.
void copy_in_host(void* dst, void const* src, std::size_t bytes, stores) noexcept;

}  // namespace weir::streams
