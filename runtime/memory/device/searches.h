// How much one miss looks at.
#pragma once
#include <cstddef>

#include "runtime/memory/heap/heap_index.h"

namespace weir::memory {

inline constexpr int looks = 64;                              // blocks of one heap that one search looks at
inline constexpr std::size_t asked_a_miss = heap_index::few;  // streams that one miss asks; the next miss asks others

}  // namespace weir::memory
