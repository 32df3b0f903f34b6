// One random program in three has other policies of reuse than the defaults, chosen by its seed. Draw a new
// option of reuse here and in tests/explore/policies.h.
// Threads: none.
#pragma once
#include <cstdint>

#include "runtime/memory/device/device_allocator.h"
#include "tests/support/memory_bench.h"
#include "weir/runtime.h"

namespace weir::tests {

// What a random program is about: small_blocks are those of streams that share pages.
enum class about : std::uint8_t { default_policies, drawn_policies, small_blocks };

inline void choose_policies(options& o, std::uint64_t seed, about what) {
  if (what == about::small_blocks)
    o.streams_with_pages = 1;
  if (what != about::drawn_policies)
    return;
  std::uint64_t const at_random = (seed * 0xff51afd7ed558ccdu) >> 24;
  if (at_random % 3)
    return;
  o.poll_on_miss = at_random / 3 % 4 != 0;
  o.device_waits = static_cast<options::wait_policy>(at_random / 12 % 3);
  o.deterministic = o.device_waits == options::wait_policy::before_growth && at_random / 432 % 2;
  if (at_random / 108 % 2)
    o.fence_interval = 1;  // each free: a wait before growth finds its fence
  if (at_random / 216 % 2)
    o.streams_with_pages = 1;  // the others share
}

// Free memory goes back at the second miss, in one program of five.
inline bool idle_goes(options const& o, std::uint64_t seed) {
  return !o.deterministic && seed % 5 == 4;
}
inline void let_idle_go(memory_bench& b, int devices) {
  for (int d = 0; d < devices; ++d)
    static_cast<memory::device_allocator&>(b.on(d)).let_idle_go_after(1);
}

}  // namespace weir::tests
