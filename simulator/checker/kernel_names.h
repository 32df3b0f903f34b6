// Names of kernels as reports print them: demangled, without result, parameters and long template arguments.
// Threads: any for the functions; an object under the checker's lock.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "simulator/checker/suppressions.h"

namespace weir::driver::check {

std::string demangled(char const* name);        // as it is, if it is no mangled name
std::string short_name(std::string_view name);  // of a demangled one

class kernel_names {
 public:
  struct launch {
    std::string in_words;  // "launch of scale": its address names the kernel
    bool quiet = false;    // a suppression names it
  };
  // Requires: the name lives as long as the process. Null: a kernel without a name
  launch const& of(char const* name, suppressions const& rules);

 private:
  std::unordered_map<char const*, launch const*> by_pointer_;
  std::map<std::string, launch, std::less<>> by_name_;
};

}  // namespace weir::driver::check
