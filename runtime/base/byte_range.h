// A byte range is a run of bytes at an address.
// Whether a part lies inside one is asked here, without a sum that could wrap.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weir::base {

struct byte_range {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;

  // 0: nothing of it lies there
  constexpr std::size_t left_from(std::uintptr_t from) const noexcept {
    return from - at < bytes ? bytes - (from - at) : 0;
  }
  constexpr bool holds(std::uintptr_t from, std::size_t n) const noexcept {
    return from - at <= bytes && n <= bytes - (from - at);
  }
};

}  // namespace weir::base
