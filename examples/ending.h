// Exit status of the examples: success turns into failure if part of stdout was lost.
// Threads: main, as the program's last call.
#pragma once
#include <cstdio>
#include <stdexcept>

namespace examples {

// A wrong argument: the program ends with status 2, as all of weir's do (docs/reference/command-line.md).
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline int wrong_usage(char const* program, usage_error const& e) {
  std::fprintf(stderr, "%s: %s. See --help\n", program, e.what());
  return 2;
}

// Returns: `status`; 1 instead of 0 if stdout could not be written completely. Reports that to stderr.
inline int ending(char const* program, int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
  std::fprintf(stderr, "%s: writing the output failed: check whether the disk is full\n", program);
  return status ? status : 1;
}

}  // namespace examples
