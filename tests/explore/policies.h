// Policies of reuse drawn from a tape: two of three runs have the defaults. Draw a
// new option of reuse here and in tests/model/policies.h.
// Threads: none.
#pragma once
#include "tests/explore/explore.h"

namespace weir::tests {

inline options drawn_policies(trial& t) {
  options o;
  if (t.draw(3) < 2)
    return o;
  o.poll_on_miss = t.draw(4) != 3;
  o.device_waits = static_cast<options::wait_policy>(t.draw(3));
  o.deterministic = o.device_waits == options::wait_policy::before_growth && t.coin();
  if (t.coin())
    o.fence_interval = 1;
  if (t.coin())
    o.streams_with_pages = 1;
  return o;
}

}  // namespace weir::tests
