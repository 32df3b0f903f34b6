// Ends the process where a rule is broken.
// Threads: any.
#include "runtime/base/rule.h"

#ifndef NDEBUG
#include <cstdlib>
#include <string>

#include "runtime/base/os.h"

namespace weir::base {

void rule_broken(char const* words, char const* file, int line) noexcept {
  os::print_error(std::string(file) + ":" + std::to_string(line) + ": broken rule: " + words + "\n");
  std::abort();
}

}  // namespace weir::base
#endif
