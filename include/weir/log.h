// weir/log.h: what weir tells while it runs. Silent, unless options::log asks for more.
// Threads: any.
#pragma once
#include <functional>

#include "weir/runtime.h"

namespace weir {

struct log_line {
  std::int64_t ns;       // since 1970
  log_level level;
  int device;            // -1: none
  std::uint64_t stream;  // 0: none
  size_t bytes;          // 0: of no memory
  std::string_view text;
  std::string str() const;  // "weir 14:03:22.123456 warning gpu:0 stream 7, 3 GiB: …"
};
// Where lines go from now on, one after the other, from whatever thread; an empty one:
// to the standard error output, as at first.
// Requires of it: calls nothing of weir (locks may be held), throws nothing.
void on_log(std::function<void(log_line const&)>);

}  // namespace weir
