// Copies of host memory that registered_host_memory has page-locked: an engine takes no range over the end of a
// registration, though all of its pages are locked.
// Threads: any.
#pragma once
#include <algorithm>

#include "streams/copy/copy_engine.h"
#include "streams/pinned/locked_ranges.h"

namespace weir::peer {

inline bool is_in_one_registration(runtime::impl& r, void const* dst, void const* src, std::size_t bytes) {
  auto const* const locked = r.part_if_made<streams::locked_ranges>();
  return !locked || std::min(locked->left(dst), locked->left(src)) >= bytes;
}

// Throws: as enqueue_copy
inline void enqueue_by_registration(runtime::impl& r, clock::stream_clock& stream, void* dst, void const* src,
                                    std::size_t bytes, source_location at) {
  auto const* const locked = r.part_if_made<streams::locked_ranges>();
  for (std::size_t n = 0; bytes; bytes -= n) {
    n = locked ? std::min({bytes, locked->left(dst), locked->left(src)}) : bytes;
    streams::enqueue_copy(stream, dst, src, n, at);
    dst = static_cast<std::byte*>(dst) + n, src = static_cast<std::byte const*>(src) + n;
  }
}

}  // namespace weir::peer
