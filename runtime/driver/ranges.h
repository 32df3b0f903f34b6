// Names for parts of a program, told to tools that listen to NVTX.
// Nothing without CUDA; a few ns where nobody listens.
// Threads: any; ranges are a thread's own.
#pragma once

namespace weir::driver {
#ifdef WEIR_WITH_CUDA
void push_range(char const* name) noexcept;
void pop_range() noexcept;
#else
inline void push_range(char const*) noexcept {}
inline void pop_range() noexcept {}
#endif
}  // namespace weir::driver
