// Kernels that write and check many blocks through an array of addresses.
// Threads: any; enqueues on the thread's current stream.
#pragma once
#include <cstddef>
#include <cstdint>

namespace seeds {

// Writes the low bits of i to *blocks[i] for all i < count. `blocks`: device memory.
void write_through(std::uint32_t* const* blocks, std::size_t count);
// Counts the blocks that do not hold what write_through wrote. Writes one count for each of `parts` parts to
// `wrong`, in device memory.
void count_wrong(std::uint32_t* const* blocks, std::size_t count, std::uint32_t* wrong, std::size_t parts);

}  // namespace seeds
