// The frame that names a stack: the innermost line of the user's own program.
// Threads: any; pure functions.
#pragma once
#include <span>
#include <string>

#include "runtime/report/snapshot.h"

namespace weir::report {

// Of the stack's frames with a source line, the innermost whose file is in no installed package. Without one: the
// innermost in a package that is neither PyTorch nor Python. Without one: the innermost line at all.
// Returns: its index; the number of frames: no frame has a line
std::size_t own_line(std::span<frame const> innermost_first);

// What a stack without any line did, as one of PyTorch's backward thread: "AddmmBackward0", its autograd function;
// else "operator sum_dim_IntList", its outermost operator; else its innermost function that is not of PyTorch's
// recorder or allocator.
std::string own_call(std::span<frame const> innermost_first);

}  // namespace weir::report
