// An HTML page: memory over time, and the layout at any moment. One file, no network access.
// Threads: any; values in, bytes out.
#pragma once
#include "runtime/report/snapshot.h"

namespace weir::report {

std::string page(std::span<device_snapshot const>, std::span<stack_of const>, std::string_view title);

}  // namespace weir::report
