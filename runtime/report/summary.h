// Statistics as tables for people and as names for dashboards.
// Threads: any; values in, text out.
#pragma once
#include "weir/stats.h"

namespace weir::report {

// `now` says whose memory it is and what the device holds otherwise.
std::string summary(memory_statistics const&, memory_report const& now);

}  // namespace weir::report
