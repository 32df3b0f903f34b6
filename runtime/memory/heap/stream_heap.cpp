// What a stream's memory is listed as among those of its device.
// Threads: as heap_index.h.
#include <algorithm>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/heap/heap_index.h"

namespace weir::memory {

lenders::rows stream_memory::to_be_listed() const noexcept {
  lenders::rows const waits = pending.empty() ? 0 : lenders::waits;
  if (lock.is_owned()) {
    auto const mapped = static_cast<std::size_t>(counts.bytes_mapped());
    return waits | lenders::of_size(mapped) | (mapped ? lenders::whole : 0);
  }
  bool const whole = !pieces.regions().empty() && pieces.most_free() >= pieces.regions().front()->page_bytes;
  std::size_t const largest = std::max(pieces.most_for_blocks(), pending.largest());
  return waits | lenders::of_size(largest) | (whole ? lenders::whole : 0);
}

}  // namespace weir::memory
