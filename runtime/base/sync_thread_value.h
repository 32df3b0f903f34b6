// One T per thread for each Tag, of a type that needs no destruction. No use of it allocates or throws, so that
// functions without an exception may begin with it.
// Threads: each has its own. A kept thread's next life finds what the last one left.
#pragma once
#include <type_traits>

namespace weir::base {

template <class Tag, class T>
struct thread_value {
  static_assert(std::is_trivially_destructible_v<T>);
  static inline constinit thread_local T value{};
};

}  // namespace weir::base
