// Statistics as tables for people and as names for dashboards.
// Threads: any; values in, text out.
#pragma once
#include <span>

#include "weir/stats.h"

namespace weir::report {

// `now` says whose memory it is and what the device holds otherwise.
// A table, and after it a sentence for each thing worth knowing.
std::string summary(memory_statistics const&, memory_report const& now, std::span<stream_memory_use const>);

}  // namespace weir::report
