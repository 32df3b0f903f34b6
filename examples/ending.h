// How these programs end: with what they found, but never well when what they printed is lost.
// Threads: the program's last.
#pragma once
#include <cstdio>

namespace examples {

// Returns: `status`, or 1 for 0 where not all of stdout could be written, which stderr is told then.
inline int ending(char const* program, int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
  std::fprintf(stderr, "%s: not all that was printed could be written: is the disk full?\n", program);
  return status ? status : 1;
}

}  // namespace examples
