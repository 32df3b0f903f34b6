// Byte ranges at an address, alone and in maps by their first address. Comparisons form no sum that wraps.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace weir::base {

struct byte_range {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;

  // 0: `from` lies outside
  constexpr std::size_t left_from(std::uintptr_t from) const noexcept {
    return from - at < bytes ? bytes - (from - at) : 0;
  }
  constexpr bool holds(std::uintptr_t from, std::size_t n) const noexcept {
    return from - at <= bytes && n <= bytes - (from - at);
  }
};

// The last of the map that begins at or before `at`; its end: none.
template <class Map>
auto at_or_before(Map& map, std::uintptr_t at) {
  auto const next = map.upper_bound(at);
  return next == map.begin() ? map.end() : std::prev(next);
}
// The one of the map that holds `at`; its end: none.
template <class Map>
auto holder_of(Map& map, std::uintptr_t at) {
  auto const one = at_or_before(map, at);
  return one != map.end() && at - one->first < one->second.bytes ? one : map.end();
}
template <class Map>
bool overlaps(Map& map, std::uintptr_t at, std::size_t bytes) {
  auto const next = map.lower_bound(at);
  return holder_of(map, at) != map.end() || (next != map.end() && next->first - at < bytes);
}

}  // namespace weir::base
