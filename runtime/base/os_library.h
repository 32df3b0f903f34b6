// Libraries found at run time: the CUDA driver, cuBLAS and NCCL are never linked,
// so that one binary runs without them.
// Threads: any.
#pragma once

namespace weir::os {

// Loads a library by its file name and keeps it for the life of the process. Returns:
// null when the system does not have it.
void* load_library(char const* name) noexcept;
// Returns: the address of a function or variable of a loaded library,
// null when it has none of this name. Requires: library not null.
void* find_symbol(void* library, char const* name) noexcept;

}  // namespace weir::os
