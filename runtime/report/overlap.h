// What of a device's copies went on while kernels ran.
// Threads: any; values in, text out.
#pragma once
#include <span>
#include <string>

#include "runtime/observe/span_recorder.h"

namespace weir::report {

std::string overlap(std::span<observe::span const>);

}  // namespace weir::report
