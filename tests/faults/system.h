// The system calls of a test: counted, and refused on request.
// Threads: what the calling thread makes counts and fails;
// others' calls are let through. One thread fails at a time.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/os.h"

namespace weir::faults::system {

inline constexpr std::uint64_t without_end = ~std::uint64_t{0};

// Refuses this thread's k-th call from now (1 is the next) and `more` after it; 0: only counts.
void fail(std::uint64_t k, std::uint64_t more) noexcept;
// Returns: the first ten thousand calls since fail(), in order.
std::vector<os::call> stop();
std::uint64_t times_refused(os::call) noexcept;  // in this process so far
char const* name_of(os::call) noexcept;

}  // namespace weir::faults::system
