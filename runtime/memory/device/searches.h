// How much one miss looks at.
#pragma once
#include <cstddef>

#include "runtime/memory/heap/heap_index.h"

namespace weir::memory {

inline constexpr int looks = 64;                              // blocks of one stream that would do
inline constexpr std::size_t asked_a_miss = heap_index::few;  // streams; another time the others

}  // namespace weir::memory
