// Tests that do on purpose what the checker reports. All tests also run with the checker before every machine
// (ctest -L checked), and fail for reports that nobody took: these take theirs.
// Threads: as race_reports().
#pragma once
#include "simulator/checker/race_checker.h"
#include "weir/observe.h"

namespace weir::tests {

// What was reported so far is meant to be there; without a checker, nothing.
inline void reported_on_purpose() { (void)race_reports(); }
inline void reported_on_purpose(driver::driver& machine) {
  if (auto* const checker = driver::check::control_of(machine)) (void)checker->findings();
}

}  // namespace weir::tests
