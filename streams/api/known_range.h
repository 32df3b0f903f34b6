// A known range: what weir knows of the memory behind an address, and whether the bytes asked for end inside
// it. Copies, sets, launches, collectives and buckets all ask here. A block ends with the last byte that was
// requested: the rounding behind it is memory of the allocator, and no operation reaches it.
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
    past_end,  // it begins in a block, or in the rounding behind it, and ends past the bytes that were requested
    no_block,            // in memory of weir's, and no live block is there
    wraps,               // past the end of all addresses
    of_another_runtime,  // device memory
    unknown              // not weir's: the driver may know
  };

  // bytes == 0: up to the end of its block. No driver call.
  static known_range of(runtime::impl&, void const* at, std::size_t bytes) noexcept;

  // `operand`: the part that the memory plays, "dst", "reads". Throws:
  // invalid_use unless it is inside or unknown
  known_range const& require_inside(std::string_view operation, std::string_view operand, source_location) const;
  std::size_t left() const noexcept;  // bytes from the address to the end of its block; 0: it begins in the rounding
  bool open_to(int reader) const noexcept;          // Requires: device >= 0
  std::string text() const;                         // "gpu:1 0x7f1000"

  verdict is = verdict::unknown;
  void const* at = nullptr;
  std::size_t bytes = 0;                            // asked for
  int device = -1;                                  // whose memory it is; -1: the host's, or unknown
  memory::block block{};                            // inside, past_end
  memory::allocator* memory = nullptr;              // which handed the block out
  pinned_memory* pinned = nullptr;                  // likewise
  bool locked_in_place = false;                     // memory of the program's own (registered_host_memory)
  bool imported = false;                            // of another process
  std::uint64_t readers = 0;                        // of shared memory: devices that may use it, a bit each
};

}  // namespace weir::streams
