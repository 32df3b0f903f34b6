// Named ranges of a program, for tools that listen to NVTX. A few ns without a tool.
// Threads: any; each thread has its own ranges.
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
