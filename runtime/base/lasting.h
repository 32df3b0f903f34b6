// A value that lies in the process itself and is never destroyed. Making it needs no host memory beyond what T itself
// takes, so that a function without an exception may begin with one; threads that end late still find it.
// Threads: as T's. `static lasting<T>` in a function is made at the first call.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

namespace weir::base {

template <class T>
class lasting {
 public:
  lasting() noexcept(noexcept(T())) { new (place_) T(); }
  lasting(lasting const&) = delete;
  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(place_)); }
  void make_anew() noexcept(noexcept(T())) { new (place_) T(); }  // the last value is left as it is

 private:
  alignas(T) std::byte place_[sizeof(T)];
};

}  // namespace weir::base
