// An owner whose end cannot free its block: the block stays, and the log says which.
// Threads: any.
#pragma once

namespace weir::streams {

// Of a refused free; not of a block that the program freed, nor of a lost device's. `end`: "the end of its buffer".
// Requires: the free's exception is being handled.
void tell_of_refused_free(void const* block, char const* end) noexcept;

}  // namespace weir::streams
