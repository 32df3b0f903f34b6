// The system's calls of a test: they are counted, and refused when it says so.
// Threads: what the calling thread makes counts and fails;
// others' calls are let through. One thread fails at a time.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/os.h"

namespace weir::faults::system {

inline constexpr std::uint64_t without_end = ~std::uint64_t{0};

// The k-th call of this thread from now, and `more` after it, are refused.
// k = 1 is the next; 0: none, they are counted.
void fail(std::uint64_t k, std::uint64_t more) noexcept;
// Returns: the calls made since fail(), in order, the first ten thousand of them.
std::vector<os::call> stop();
std::uint64_t times_refused(os::call) noexcept;  // in this process so far
char const* name_of(os::call) noexcept;

}  // namespace weir::faults::system
