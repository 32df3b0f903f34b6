// One random program in three has other policies of reuse than the defaults, chosen by its seed. Draw a new
// option of reuse here and in tests/explore/policies.h.
// Threads: none.
#pragma once
#include <cstdint>

#include "weir/runtime.h"

namespace weir::tests {

inline void choose_policies(options& o, std::uint64_t seed) {
  std::uint64_t const at_random = (seed * 0xff51afd7ed558ccdu) >> 24;
  if (at_random % 3) return;
  o.poll_on_miss = at_random / 3 % 4 != 0;
  o.device_waits = static_cast<options::wait_policy>(at_random / 12 % 3);
  o.deterministic = o.device_waits == options::wait_policy::before_growth;
  if (at_random / 108 % 2) o.fence_interval = 1;  // each free: a wait before growth finds its fence
}

}  // namespace weir::tests
