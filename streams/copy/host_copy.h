// Copies within host memory, with different effects on the caches.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weir::streams {

enum class stores : std::uint8_t {
  plain,        // memcpy
  past_caches,  // writes whole lines to memory without reading them, and evicts nothing from the caches
  // memcpy, then demotes the written lines from the core's caches to the shared one, if the processor can
  to_shared_cache,
};

// Requires: no overlap. Ensures: the bytes are visible before this thread's next action, also to an engine.
void copy_in_host(void* dst, void const* src, std::size_t bytes, stores) noexcept;

}  // namespace weir::streams
