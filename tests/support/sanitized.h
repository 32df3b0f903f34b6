// Whether this program has a sanitizer. Repetitions are then reduced, because each takes ten times as long.
// Threads: a constant.
#pragma once

namespace weir::tests {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace weir::tests
