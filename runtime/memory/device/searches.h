// How much one miss examines.
#pragma once
#include <cstddef>

#include "runtime/memory/heap/heap_index.h"

namespace weir::memory {

inline constexpr int looks = 64;                              // blocks of one heap that one search examines
inline constexpr std::size_t asked_a_miss = heap_index::few;  // streams that one miss queries; the next asks others

}  // namespace weir::memory
