// The tool: `weir COMMAND [OPTIONS]`. Runs the subcommand and reports an error in one line.
// Threads: one.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace {
char const* const usage =
    "usage: weir COMMAND [OPTIONS]\n"
    "  info     the machine: devices, memory, links   (weir info --help)\n"
    "  doctor   limits and options in force, where each came from, and what to do   (weir doctor --help)\n"
    "  bench    what things cost here: bench alloc | copy | pipeline | share   (weir bench alloc --help)\n"
    "  replay   recorded allocations, run through weir: memory and time they take   (weir replay --help)\n"
    "  snapshot a memory snapshot, of weir's or PyTorch's: what it holds, and a page for a browser   (weir snapshot "
    "--help)\n";

char const* const bench_usage =
    "usage: weir bench BENCHMARK [OPTIONS]\n"
    "  alloc    nanoseconds of an allocation and its free, beside malloc   (weir bench alloc --help)\n"
    "  copy     copies through weir and by the driver's own call   (weir bench copy --help)\n"
    "  pipeline copy in, work, copy out on three streams   (weir bench pipeline --help)\n"
    "  share    memory that a second process reads   (weir bench share --help)\n";

bool asks_for_help(std::string const& word) { return word == "--help" || word == "-h" || word == "help"; }

// Dispatches to the benchmarks by name.
int bench(std::vector<std::string> const& rest) {
  std::string const what = rest.empty() ? "" : rest.front();
  std::vector<std::string> const arguments(rest.begin() + (rest.empty() ? 0 : 1), rest.end());
  if (asks_for_help(what)) return std::fputs(bench_usage, stdout), 0;
  if (what == "alloc") return weir::tool::bench_alloc(arguments);
  if (what == "copy") return weir::tool::bench_copy(arguments);
  if (what == "pipeline") return weir::tool::bench_pipeline(arguments);
  if (what == "share") return weir::tool::bench_share(arguments);
  if (what.empty()) std::fprintf(stderr, "weir bench: no benchmark is named\n%s", bench_usage);
  else std::fprintf(stderr, "weir bench: no benchmark '%s'; there are: alloc, copy, pipeline, share\n", what.c_str());
  return 2;
}

// Reports weir's errors without their source location, which is of no use to the tool's users.
int command(int argc, char** argv) try {
  std::string const command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> const rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "info") return weir::tool::info(rest);
  if (command == "doctor") return weir::tool::doctor(rest);
  if (command == "bench") return bench(rest);
  if (command == "replay") return weir::tool::replay(rest);
  if (command == "snapshot") return weir::tool::snapshot(rest);
  if (asks_for_help(command)) return std::fputs(usage, stdout), 0;
  static constexpr std::string_view commands[] = {"info", "doctor", "bench", "replay", "snapshot", "help"};
  auto const meant = weir::base::near(command, commands);
  std::fprintf(stderr, "weir: no command '%s'%s\n%s", command.c_str(),
               meant ? ("; did you mean '" + std::string(*meant) + "'?").c_str() : "", usage);
  return 2;
} catch (weir::error const& e) {
  std::string const remedy(e.remedy());  // operands may contain text from a file
  std::fprintf(stderr, "weir: %s: %s%s%s\n", std::string(e.operation()).c_str(),
               weir::base::visible(e.operands()).c_str(), remedy.empty() ? "" : ". ", remedy.c_str());
  return 1;
} catch (std::exception const& e) {
  std::fprintf(stderr, "weir: %s\n", weir::base::visible(e.what()).c_str());
  return 1;
}
}

int main(int argc, char** argv) {
  int const status = command(argc, argv);
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return status;
  std::fprintf(stderr, "weir: not all that was printed could be written: is the disk full?\n");
  return status ? status : 1;
}
