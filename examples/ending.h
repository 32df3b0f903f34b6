// Exit status of the examples: what went wrong is told, and success turns into failure if part of stdout was lost.
// Threads: main.
#pragma once
#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "weir/c.h"
#include "weir/error.h"

namespace examples {

// A wrong argument: the program ends with status 2, as all of weir's do (docs/reference/command-line.md).
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Prints the version if `option` asks for it. Returns: whether it does.
inline bool says_version(char const* program, std::string_view option) {
  if (option != "--version")
    return false;
  std::printf("%s of weir %s\n", program, weir_version());
  return true;
}

// Returns: `status`; 1 instead of 0 if stdout could not be written completely. Reports that to stderr.
inline int ending(char const* program, int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout))
    return status;
  std::fprintf(stderr, "%s: writing the output failed: check whether the disk is full\n", program);
  return status ? status : 1;
}
// The same of what `command` returns, or throws: 2 for wrong usage, 1 for other failures, which stderr tells.
inline int program(char const* name, int argc, char** argv, int (*command)(int, char**)) {
  int status = 1;
  try {
    status = command(argc, argv);
  } catch (usage_error const& e) {
    std::string_view const mistake = e.what();
    std::fprintf(stderr, "%s: %s%s See --help\n", name, e.what(), mistake.ends_with('?') ? "" : ".");
    status = 2;
  } catch (weir::out_of_memory const& e) {
    std::fprintf(stderr, "%s\n", e.report().text().c_str());
  } catch (std::exception const& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", name, e.what());
  }
  return ending(name, status);
}

}  // namespace examples
