// The live blocks of operator new in this program, by their size.
// Threads: any.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace weir::soak {

// The heap rounds a block to 16 bytes, so each size to 1 KiB has a count of its own. Larger ones share it by power.
inline constexpr std::size_t block_step = 16, exact_sizes = 64, block_sizes = exact_sizes + 8;
std::array<std::int64_t, block_sizes> host_blocks_now() noexcept;
// Bytes of the heap in all these blocks, but for those of the last size, which have pages of their own.
std::int64_t host_block_bytes_now() noexcept;
std::size_t most_bytes_of(std::size_t size) noexcept;  // of a block that counts there

}  // namespace weir::soak
