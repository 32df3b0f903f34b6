// Rounds up to any step. For powers of two, such as pages of devices: memory/blocks/address.h.
// Threads: any.
#pragma once
#include <cstddef>

namespace weir::base {

inline constexpr std::size_t round_up(std::size_t n, std::size_t step) noexcept {
  return (n + step - 1) / step * step;
}

}  // namespace weir::base
