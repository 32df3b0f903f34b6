// The tool: `weir COMMAND [OPTIONS]`. Runs the subcommand and reports an error in one line.
// Threads: one.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace {
char const* const usage =
    "usage: weir COMMAND [OPTIONS]\n"
    "A memory runtime for GPUs: what this machine is, what a program needs, what calls cost.\n"
    "\n"
    "commands:\n"
    "  info      the machine: devices, memory, links\n"
    "  doctor    checks of this machine, options in force, advice\n"
    "  replay    recorded allocations of a program: the memory and the time that they take\n"
    "  check     runs a CUDA program that does not use weir, and reports its races\n"
    "  snapshot  a memory snapshot of weir or PyTorch: sums, and a page for a browser\n"
    "  bench     what calls cost here: alloc, copy, pipeline, share, train\n"
    "\n"
    "options:\n"
    "  --version   the version\n"
    "  -h, --help  this text; weir COMMAND --help has the options of a command\n"
    "\n"
    "examples:\n"
    "  weir doctor\n"
    "  weir replay --limit 8GiB mine.trace.gz\n"
    "\n"
    "exit status: 0 ok, 1 a finding or an error, 2 usage, 3 does not fit\n";

char const* const bench_usage =
    "usage: weir bench BENCHMARK [OPTIONS]\n"
    "What calls cost on this machine.\n"
    "\n"
    "benchmarks:\n"
    "  alloc     an allocation and its free, beside malloc and cudaMallocAsync   (weir bench alloc --help)\n"
    "  copy      copies through weir and by the driver's own call   (weir bench copy --help)\n"
    "  pipeline  copy in, work, copy out on three streams   (weir bench pipeline --help)\n"
    "  share     memory that a second process reads   (weir bench share --help)\n"
    "  train     steps of a data-parallel model   (weir bench train --help)\n"
    "\n"
    "exit status: 0 ok, 1 error, 2 usage\n";

bool asks_for_help(std::string const& word) {
  return word == "--help" || word == "-h" || word == "help";
}

// Dispatches to the benchmarks by name.
int bench(std::vector<std::string> const& rest) {
  std::string const what = rest.empty() ? "" : rest.front();
  std::vector<std::string> const arguments(rest.begin() + (rest.empty() ? 0 : 1), rest.end());
  if (asks_for_help(what))
    return std::fputs(bench_usage, stdout), 0;
  if (what == "alloc")
    return weir::tool::bench_alloc(arguments);
  if (what == "copy")
    return weir::tool::bench_copy(arguments);
  if (what == "pipeline")
    return weir::tool::bench_pipeline(arguments);
  if (what == "share")
    return weir::tool::bench_share(arguments);
  if (what == "train")
    return weir::tool::bench_train(arguments);
  if (what.empty())
    std::fprintf(stderr, "weir bench: missing benchmark\n%s", bench_usage);
  else
    std::fprintf(stderr, "weir bench: no benchmark '%s'; there are: alloc, copy, pipeline, share, train\n",
                 what.c_str());
  return weir::tool::wrong_usage;
}

// A mistake in an argument or in the environment, not in a file that was read.
bool is_usage(weir::invalid_use const& e) {
  for (std::string_view const with : {"--", "WEIR_", "bench", "runtime"}) {
    if (e.operation().starts_with(with))
      return true;
  }
  bool const reads_files = e.operation() == "replay" || e.operation() == "snapshot";
  return reads_files && (e.operands().starts_with("--") || e.operands().starts_with("no "));
}

// Omits the source location, which is of no use to the tool's users. Operands may contain text from a file.
void report(weir::error const& e) {
  std::string const remedy(e.remedy());
  std::string const number = e.id() == weir::error_id::none ? "" : "-" + std::to_string(static_cast<int>(e.id()));
  std::fprintf(stderr, "weir%s: %s: %s%s%s\n", number.c_str(), std::string(e.operation()).c_str(),
               weir::base::visible(e.operands()).c_str(), remedy.empty() ? "" : ". ", remedy.c_str());
}

int command(int argc, char** argv) try {
  std::string const command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> const rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "info")
    return weir::tool::info(rest);
  if (command == "doctor")
    return weir::tool::doctor(rest);
  if (command == "bench")
    return bench(rest);
  if (command == "replay")
    return weir::tool::replay(rest);
  if (command == "check")
    return weir::tool::check(rest);
  if (command == "snapshot")
    return weir::tool::snapshot(rest);
  if (asks_for_help(command))
    return std::fputs(usage, stdout), 0;
  if (command == "--version")
    return std::printf("%s\n", weir::tool::version_line().c_str()), 0;
  static constexpr std::string_view commands[] = {"info",  "doctor",   "bench", "replay",
                                                  "check", "snapshot", "help",  "--version"};
  auto const meant = weir::base::near(command, commands);
  std::fprintf(stderr, "weir: no command '%s'%s\n%s", command.c_str(),
               meant ? ("; did you mean '" + std::string(*meant) + "'?").c_str() : "", usage);
  return weir::tool::wrong_usage;
} catch (weir::tool::usage_error const& e) {
  std::fprintf(stderr, "%s\n", weir::base::visible(e.what()).c_str());
  return weir::tool::wrong_usage;
} catch (weir::invalid_use const& e) {
  report(e);
  return is_usage(e) ? weir::tool::wrong_usage : weir::tool::finding;
} catch (weir::error const& e) {
  report(e);
  return weir::tool::finding;
} catch (std::exception const& e) {
  std::fprintf(stderr, "weir: %s\n", weir::base::visible(e.what()).c_str());
  return weir::tool::finding;
}
}  // namespace

int main(int argc, char** argv) {
  int const status = command(argc, argv);
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout)
    return status;
  std::fprintf(stderr, "weir: writing the output failed: check whether the disk is full\n");
  return status ? status : 1;
}
