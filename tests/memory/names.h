// Names that the tests of memory share.
// Threads: none.
#pragma once
#include <cstddef>

#include "weir/types.h"

namespace weir {

inline constexpr source_location at{"a test", "a test", 1};  // of every request
inline constexpr std::size_t page = 64 << 10;  // of machines that are stepped, or whose threads are scheduled

}  // namespace weir
