// Libraries found at run time. CUDA, cuBLAS and NCCL are never linked, so that one binary runs without them.
// Threads: any.
#pragma once

namespace weir::os {

// Loads a library and keeps it loaded. Returns: null if the system does not have it.
void* load_library(char const* name) noexcept;
// Returns: the address of a function or variable; null if the library has none. Requires: library not null.
void* find_symbol(void* library, char const* name) noexcept;

}  // namespace weir::os
