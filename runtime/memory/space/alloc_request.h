// One request for memory: checked and rounded once.
// Threads: any.
#pragma once
#include "runtime/memory/space/device_context.h"

namespace weir::memory {

inline constexpr std::size_t largest_alignment = 2 << 20;  // bytes

struct alloc_request {
  // Any size is rounded; one that no device has is out of memory later.
  // Throws: invalid_use (alignment, a stream of another device or one that has ended)
  static alloc_request make(device_context const&, clock::stream_clock& home, std::size_t bytes, std::size_t alignment,
                            source_location);

  clock::stream_clock& home;
  std::size_t bytes;  // as requested
  std::size_t alignment;
  int size_class;       // -1: a block of the arena
  std::size_t rounded;  // bytes of the slot or block
  source_location at;
  bool captured_is_known = false;  // the home was asked whether it is captured, or is a lane
};

}  // namespace weir::memory
