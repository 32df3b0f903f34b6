// One kernel that writes through many addresses.
// Threads: any; enqueues on the thread's current stream.
#pragma once
#include <cstddef>
#include <cstdint>

namespace seeds {

// *blocks[i] = i's low bits, for all i < count. `blocks`: device memory that holds the addresses.
void write_through(std::uint32_t* const* blocks, std::size_t count);
// How many of them do not hold what write_through wrote:
// a number for each of `parts` parts, to `wrong` (device memory).
void count_wrong(std::uint32_t* const* blocks, std::size_t count, std::uint32_t* wrong, std::size_t parts);

}  // namespace seeds
