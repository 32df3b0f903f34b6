// One end of a copy: the memory at an address, found without help of the caller.
// Threads: any.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "streams/api/known_range.h"

namespace weir::peer {

struct endpoint {
  void const* at = nullptr;
  driver::where in = driver::where::pageable;
  bool leaves_its_pin = false;          // it is pageable, but begins in pinned memory
  int device = -1;                      // if in == device
  std::optional<memory::block> block;   // a block of weir
  memory::allocator* memory = nullptr;  // of weir's device block
  bool foreign = false;                 // of another process, see weir/share.h
  std::uint64_t readers = 0;            // of shared memory: devices with access, a bit each
  bool open_to(int reader) const { return memory ? memory->granted(at, reader) : readers >> (reader & 63) & 1; }
  bool is_pageable() const noexcept { return in == driver::where::pageable && !leaves_its_pin; }
  bool on_host() const noexcept { return in == driver::where::pageable || in == driver::where::pinned; }
  std::string text() const;  // "gpu:1 0x7f1000"
};

// Requires: bytes > 0. `role`: "dst" or "src". Throws: invalid_use (null, as known_range, unknown device)
endpoint inspect(runtime::impl&, std::string_view operation, std::string_view role, void const*, std::size_t bytes,
                 source_location);

}  // namespace weir::peer
