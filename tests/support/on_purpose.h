// For tests that intentionally do what the checker reports. All tests also run under the checker (ctest -L
// checked) and fail for reports that remain. These take theirs.
// Threads: as race_reports().
#pragma once
#include "runtime/driver/race_control.h"
#include "weir/observe.h"

namespace weir::tests {

// Discards the reports so far. Without a checker: nothing.
inline void reported_on_purpose() {
  (void)race_reports();
}
inline void reported_on_purpose(driver::driver& machine) {
  if (auto* const checker = machine.checker())
    (void)checker->findings();
}

}  // namespace weir::tests
