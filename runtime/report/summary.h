// Statistics as tables for people and as names for dashboards.
// Threads: any; values in, text out.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "weir/stats.h"

namespace weir::report {

// A table with a line for each pool, then one sentence for each noteworthy fact. `now` names the device and
// its memory outside weir.
std::string summary(memory_statistics const&, memory_report const& now, std::span<stream_memory_use const>,
                    std::span<pool_memory_use const>);

struct measured {
  std::string device;  // "gpu:0", or "cpu" for page-locked host memory
  memory_statistics numbers;
  std::vector<pool_memory_use> pools = {};
};
// The text format of Prometheus 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/): samples
// of a family follow its HELP and TYPE.
std::string metrics(std::span<measured const>);

}  // namespace weir::report
