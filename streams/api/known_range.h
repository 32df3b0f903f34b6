// A known range: weir's memory behind an address, and whether the given bytes end inside it. A block ends
// with its last requested byte: the rounding behind it belongs to the allocator.
// Threads: any.
#pragma once
#include <string>
#include <string_view>

#include "runtime/memory/device/device_memory.h"

namespace weir::streams {

class pinned_memory;

struct known_range {
  enum class verdict : std::uint8_t {
    inside,              // of one live block
    past_end,            // begins in a block or the rounding behind it, and ends after the requested bytes
    no_block,            // in weir's memory, but in no live block
    asleep,              // in a live block of a pool that is asleep
    wraps,               // the end exceeds the address space
    of_another_runtime,  // device memory
    unknown              // not weir's; the driver may know it
  };

  // bytes == 0: up to the end of its block. Makes no driver call.
  static known_range of(runtime::impl&, void const* at, std::size_t bytes) noexcept;

  // `operand`: the memory's role, "dst", "reads". Throws: invalid_use unless inside or unknown
  known_range const& require_inside(std::string_view operation, std::string_view operand, source_location) const;
  std::size_t left() const noexcept;        // bytes from the address to the end of its block; 0: in the rounding
  bool open_to(int reader) const noexcept;  // Requires: device >= 0
  std::string text() const;                 // "gpu:1 0x7f1000"

  verdict is = verdict::unknown;
  void const* at = nullptr;
  std::size_t bytes = 0;                // as requested
  int device = -1;                      // of the memory; -1: host, or unknown
  memory::block block{};                // inside, past_end
  memory::allocator* memory = nullptr;  // the allocator of the block
  pinned_memory* pinned = nullptr;      // likewise
  bool locked_in_place = false;         // the program's own memory (registered_host_memory)
  bool imported = false;                // of another process
  std::uint64_t readers = 0;            // of shared memory: devices with access, a bit each
};

}  // namespace weir::streams
