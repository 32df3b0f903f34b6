// Statistics as tables for people and as names for dashboards.
// Threads: any; values in, text out.
#pragma once
#include <span>

#include "weir/stats.h"

namespace weir::report {

// A table with a line for each pool, then one sentence for each noteworthy fact. `now` names the device and its
// memory outside weir.
std::string summary(memory_statistics const&, memory_report const& now, std::span<stream_memory_use const>,
                    std::span<pool_memory_use const>);

}  // namespace weir::report
