// Torch's four numbers of a quantity, and how they change together.
// Threads: values.
#pragma once
#include <algorithm>
#include <array>

#include "weir/stats.h"

namespace weir::observe {

inline void add(statistic& s, std::int64_t change) noexcept {
  s.current += change;
  s.peak = std::max(s.peak, s.current);
  (change > 0 ? s.allocated : s.freed) += change > 0 ? change : -change;
}
inline void add(statistic_by_size& s, bool small, std::int64_t change) noexcept {
  add(s.all, change);
  add(small ? s.small : s.large, change);
}
inline std::array<statistic*, 3> parts(statistic_by_size& s) noexcept {
  return {&s.small, &s.large, &s.all};
}
// The quantities that are kept by size.
inline std::array<statistic_by_size*, 10> each(memory_statistics& n) noexcept {
  return {&n.allocation,      &n.segment,        &n.active,       &n.inactive,      &n.allocated_bytes,
          &n.requested_bytes, &n.reserved_bytes, &n.active_bytes, &n.pending_bytes, &n.cached_bytes};
}

}  // namespace weir::observe
