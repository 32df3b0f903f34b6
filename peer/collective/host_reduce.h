// Element-wise reduction for collectives of a simulated machine: many inputs, one result, many outputs.
// Threads: any, on ranges that do not overlap.
#pragma once
#include <span>

#include "weir/collective.h"

namespace weir::peer {

// Reduces the inputs in order for each element of [begin, end), and writes the same bits to every output.
// Outputs may be inputs. 16-bit floats are summed as float32, narrower integers as int64.
// Requires: reducible(type).
void reduce(dtype type, reduce_op how, std::span<void const* const> in, std::span<void* const> out, std::int64_t begin,
            std::int64_t end);

}  // namespace weir::peer
