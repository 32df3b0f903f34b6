// Counters in the text format of Prometheus 0.0.4.
// Threads: any; values in, text out.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/stats.h"

namespace weir::report {

struct measured {
  std::string device;  // "gpu:0", or "cpu" for page-locked host memory
  memory_statistics numbers;
  std::vector<pool_memory_use> pools = {};
};
// https://prometheus.io/docs/instrumenting/exposition_formats/: samples of a family follow its HELP and TYPE.
std::string metrics(std::span<measured const>);

}  // namespace weir::report
