// Copies of weir in one process: a program and a plugin that both hold the static library are two of them.
// Their pools would compete for one device, so the second copy that makes a runtime is refused.
// Threads: any.
#pragma once
#include "weir/types.h"

namespace weir {

// Held by a runtime: this copy is in use.
class copy_in_use {
 public:
  // Throws: invalid_use naming both files if another copy is in use in this process
  explicit copy_in_use(source_location);
  ~copy_in_use();
  copy_in_use(copy_in_use const&) = delete;
};

}  // namespace weir
