// weir/log.h: weir's log. Silent by default; options::log sets the level.
// Threads: any.
#pragma once
#include <functional>

#include "weir/runtime.h"

namespace weir WEIR_API {

struct log_line {
  std::int64_t ns;  // since 1970
  log_level level;
  int device;            // -1: none
  std::uint64_t stream;  // 0: none
  size_t bytes;          // 0: not about memory
  std::string_view text;
  std::string str() const;  // "weir 14:03:22.123456 warning gpu:0 stream 7, 3 GiB: …"
};
// Sets the callback for log lines of all threads, one at a time. Empty: the default, standard error.
// Requires: it makes no weir call (locks may be held) and throws nothing.
void on_log(std::function<void(log_line const&)>);

}  // namespace weir
