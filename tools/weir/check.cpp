// weir check: runs a CUDA program under the race checker, by way of libweir_check.so.
// Threads: one.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "command_line.h"
#include "commands.h"

namespace weir::tool {
namespace {

namespace fs = std::filesystem;

char const* const check_usage =
    "usage: weir check [OPTIONS] PROGRAM [ARGS...]\n"
    "Runs a CUDA program that does not use weir, unchanged, and reports its races at its end.\n"
    "A program that uses weir has the checker itself: WEIR_CHECK_RACES=1 PROGRAM\n"
    "\n"
    "options:\n"
    "  --suppress FILE  kernels and blocks that reports leave out (docs/how-to/check-a-cuda-program.md)\n"
    "  -h, --help       this text\n"
    "\n"
    "exit status: the program's own; 66 if a race was reported; 1 if the program cannot be started\n";

// Beside the tool in a build, or in the library folder of an installation.
fs::path library() {
  constexpr char const* name = "libweir_check.so";
  std::error_code failed;
  fs::path const own = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (fs::path const& folder : {own, own / "..", own / "../lib", own / "../lib64", own / "../lib/x86_64-linux-gnu"})
    if (fs::exists(folder / name, failed))
      return fs::canonical(folder / name);
  throw std::runtime_error("weir check: libweir_check.so was not found beside " + own.string() +
                           ". Build weir with a CUDA toolkit, or install it whole");
}

}  // namespace

int check(std::vector<std::string> const& arguments) {
  std::size_t first = 0;
  for (; first < arguments.size() && arguments[first].starts_with("-"); ++first) {
    std::string const& option = arguments[first];
    if (option == "-h" || option == "--help")
      return std::fputs(check_usage, stdout), all_well;
    if (option != "--suppress" || first + 1 == arguments.size())
      throw usage_error("weir check: " + (option == "--suppress" ? option + " needs a file" : "no option " + option) +
                        ". See weir check --help");
    ::setenv("WEIR_CHECK_SUPPRESS", fs::absolute(arguments[++first]).c_str(), 1);
  }
  if (first == arguments.size())
    throw usage_error("weir check: missing program. See weir check --help");
  ::setenv("CUDA_INJECTION64_PATH", library().c_str(), 1);
  ::setenv("WEIR_CHECK_RACES", "fail", 1);
  std::vector<char*> words;
  for (std::size_t i = first; i < arguments.size(); ++i)
    words.push_back(const_cast<char*>(arguments[i].c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  std::fprintf(stderr, "weir check: %s cannot be started: %s\n", words[0], std::strerror(errno));
  return finding;
}

}  // namespace weir::tool
