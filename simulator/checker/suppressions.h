// The kernels and blocks whose reports a program does not want: the lines of the file that WEIR_CHECK_SUPPRESS names.
// Threads: values.
//
//   # a comment
//   kernel: at::native::*reduce*      a glob of the kernel's demangled name, with or without its parameters
//   block: model.cu:120               where the block was allocated; the file may have folders in front
//
// A rule speaks of reports with a launch past weir.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "weir/types.h"

namespace weir::driver::check {

class suppressions {
 public:
  // where: the file's name, for errors. Throws: invalid_use (a line that is no rule)
  static suppressions parse(std::string_view text, std::string_view where);
  // The file that the variable names; none: no rules. Throws: as parse; invalid_use (it cannot be read)
  static suppressions of_process();

  bool name_kernel(std::string_view name) const;
  bool name_block(source_location allocated) const;
  bool empty() const noexcept { return kernels_.empty() && blocks_.empty(); }

 private:
  struct place {
    std::string file;
    unsigned line = 0;
  };
  void add(std::string_view line, std::string_view where, std::size_t number);
  std::vector<std::string> kernels_;
  std::vector<place> blocks_;
};

// `*` stands for any number of characters, `?` for one.
bool matches(std::string_view glob, std::string_view text) noexcept;

}  // namespace weir::driver::check
