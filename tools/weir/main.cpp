// The tool: `weir COMMAND [OPTIONS]`. Finds the subcommand and says what went wrong in one line.
// Threads: one.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.h"
#include "runtime/options.h"

namespace {
char const* const usage =
    "usage: weir COMMAND [OPTIONS]\n"
    "  info     the machine: devices, memory, links   (weir info --help)\n"
    "  replay   recorded allocations, run through weir: memory and time they take   (weir replay --help)\n";
}

int main(int argc, char** argv) try {
  std::string const command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> const rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "info") return weir::tool::info(rest);
  if (command == "replay") return weir::tool::replay(rest);
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(usage, stdout);
    return 0;
  }
  std::fprintf(stderr, "weir: no command '%s'; did you mean '%s'?\n%s", command.c_str(), std::string(weir::nearest(command, {"info", "replay", "help"})).c_str(), usage);
  return 2;
} catch (std::exception const& e) {
  std::fprintf(stderr, "weir: %s\n", e.what());
  return 1;
}
