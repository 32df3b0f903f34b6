// Scrambles words: each is mixed with a number derived from its index. Scrambling twice restores it.
#pragma once
#include <cstdint>

#include "weir/stream.h"

namespace pipeline {

// Enqueues y[i] = scrambled(x[i], first + i) for all i < words.
void scramble(weir::stream_ref, std::uint64_t* y, std::uint64_t const* x, std::uint64_t first, std::size_t words);
std::uint64_t scrambled(std::uint64_t word, std::uint64_t place);  // the same for one word, on the host

}  // namespace pipeline
