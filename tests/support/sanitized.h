// Whether this program is built with a sanitizer:
// what only repeats is repeated less there, where everything takes ten times as long.
// Threads: a constant.
#pragma once

namespace weir::tests {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace weir::tests
