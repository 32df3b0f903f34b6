// The share of a device's copies that ran while kernels ran.
// Threads: any; values in, text out.
#pragma once
#include <span>
#include <string>

#include "runtime/observe/span_recorder.h"

namespace weir::report {

std::string overlap(std::span<observe::span const>);

}  // namespace weir::report
