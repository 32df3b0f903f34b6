// The log: a line for people, with its device, stream and bytes. Lines are only formatted if the level is on.
// Threads: any, with locks held too, so that the receiver must not call weir.
#pragma once
#include "runtime/core/parts.h"
#include "weir/log.h"

namespace weir {

inline bool logs(runtime::impl const& r, log_level at) noexcept {
  return r.options().log >= at;
}
struct log_about {
  int device = -1;
  std::uint64_t stream = 0;
  size_t bytes = 0;
};
void log(log_level, log_about, std::string_view text) noexcept;  // Requires: logs()

}  // namespace weir
