// The memory of weir::pinned_allocator: pinned blocks.
// Threads: any.
#include <limits>

#include "runtime/base/process.h"
#include "runtime/observe/history.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "weir/memory.h"

namespace weir::detail {

void* allocate_pinned(std::size_t count, std::size_t size, std::size_t alignment, source_location at) {
  if (size && count > std::numeric_limits<std::size_t>::max() / size) {
    throw invalid_use("pinned_allocator::allocate",
                      std::to_string(count) + " elements of " + std::to_string(size) + " B",
                      "the size overflows: ask for fewer", at, error_id{207});
  }
  runtime::impl& r = streams::current_runtime(at);
  void* const p = r.part<streams::pinned_memory>().allocate(count * size, alignment, at);
  observe::note(observe::action::alloc, p, count * size, 0, r.id(), observe::pinned_memory_place, at);
  return p;
}

void deallocate_pinned(void* block) noexcept {
  if (process_was_forked()) return;
  if (auto* const pool = streams::pinned_memory::owner(block)) {
    observe::note(observe::action::free, block, 0, 0, 0, 0, source_location::current());
    try {
      pool->deallocate(block, source_location::current());
    } catch (...) {}
  }
}

}  // namespace weir::detail
