// The work of the pipeline: each word of a file is mixed with a number that hangs on its place;
// the same again restores it.
#pragma once
#include <cstdint>

#include "weir/stream.h"

namespace pipeline {

// y[i] = x[i] mixed with place `first + i`, on the stream.
void scramble(weir::stream_ref, std::uint64_t* y, std::uint64_t const* x, std::uint64_t first, std::size_t words);
std::uint64_t scrambled(std::uint64_t word, std::uint64_t place);  // the same of one word, on the host

}  // namespace pipeline
