// The prover runs random programs against a library, sound or with a defect planted in it, until a check sees something wrong.
// Usage: planted_NAME --check CHECK --within N [--only] [--first RUN]    a defect: found by CHECK within N runs, with --only by no other
//                                                                       CHECK may be several: bytes,stray
//        planted_none --within N [--first RUN]                           sound: nothing is found in N runs
// One line of what was found goes to stdout; the exit status says whether it is as stated.
// Threads: the programs' own. They run in a child process, so that a crash is a finding too.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/planted/prover.h"

namespace {

using weir::tests::check;
using weir::tests::name_of;

constexpr unsigned longest_run_s = 20;  // a run takes milliseconds
struct found {  // shared with the child
  std::uint64_t run = 0;      // the run that is under way, or that found it
  std::uint64_t finds = 0;    // --only: by the stated check
  check by = check::none;
  char program[32] = "";
  char what[400] = "";
};

struct stated {
  std::string by;
  std::uint64_t within = 1000, first = 1;
  bool only = false;
  bool states(check c) const {
    return c == check::none ? by.empty() : ("," + by + ",").find("," + std::string(name_of(c)) + ",") != std::string::npos;
  }
};

void run_all(stated const& s, found& out) {
  std::uint64_t seen_at = 0;
  for (out.run = 1; out.run <= s.within; ++out.run) {
    ::alarm(longest_run_s);
    auto const number = s.first + out.run - 1;
    auto const kinds = weir::tests::programs();
    auto const& program = kinds[number % kinds.size()];
    std::uint64_t const seed = number / kinds.size() + 1;
    std::snprintf(out.program, sizeof out.program, "%s %llu", program.name, static_cast<unsigned long long>(seed));
    auto const v = program.run(seed);
    if (v.ok()) continue;
    bool const as_stated = s.states(v.by);
    if (!seen_at || !as_stated) {
      out.by = v.by;
      std::snprintf(out.what, sizeof out.what, "%s: %s", out.program, v.what.c_str());
      seen_at = out.run;
    }
    if (!s.only || !as_stated) return;
    ++out.finds;
  }
  if (seen_at) out.run = seen_at;
}

stated read(int argc, char** argv) {
  stated s;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (word == "--only") s.only = true;
    else if (i + 1 == argc) std::exit(2);
    else if (word == "--check") s.by = argv[++i];
    else if (word == "--within") s.within = std::strtoull(argv[++i], nullptr, 0);
    else if (word == "--first") s.first = std::strtoull(argv[++i], nullptr, 0);
    else std::exit(2);
  }
  if (char const* const first = std::getenv("WEIR_TEST_SEED")) s.first = std::strtoull(first, nullptr, 0);
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  stated const s = read(argc, argv);
  void* const page = ::mmap(nullptr, sizeof(found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 2;
  auto& f = *new (page) found;
  pid_t const child = ::fork();
  if (child < 0) return 2;
  if (child == 0) {
    run_all(s, f);
    std::fflush(nullptr);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    f.by = check::crash;
    std::snprintf(f.what, sizeof f.what, "%s: %s", f.program, WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "exit");
  }
  auto const runs = static_cast<unsigned long long>(f.by == check::none ? s.within : f.run);
  if (f.by == check::none) {
    std::printf("nothing found in %llu runs\n", runs);
  } else {
    std::printf("found by %s at run %llu of %llu: %s\n", std::string(name_of(f.by)).c_str(), runs, static_cast<unsigned long long>(s.within), f.what);
  }
  bool const right = s.states(f.by);
  if (!right) std::printf("stated: %s\n", s.by.empty() ? "nothing" : s.by.c_str());
  return right ? 0 : 1;
}
