// Element-wise arithmetic of collectives on a simulated machine:
// many inputs, one result, written to many places.
// Threads: any, on ranges that do not overlap.
#pragma once
#include <span>

#include "weir/collective.h"

namespace weir::peer {

// For each element of [begin, end): reduces the inputs in their order and writes the result to every output,
// so that all hold the same bits. Outputs may be inputs. 16-bit floats are added as float32, integers
// narrower than 64 bits as int64.
// Requires: reducible(type).
void reduce(dtype type, reduce_op how, std::span<void const* const> in, std::span<void* const> out, std::int64_t begin,
            std::int64_t end);

}  // namespace weir::peer
