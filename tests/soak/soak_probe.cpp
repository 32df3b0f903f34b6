// The soak as a program: first the lies, each in its own process, then the honest minutes, then one table.
// With --soon it ends as soon as each path was taken often enough.
//   soak [--minutes M | --seconds S] [--least N] [--soon 1] [--seed X] [--budget S] [--only LIE|none]
// Exit status: 0 valid and clean, 1 not, 2 bad option. WEIR_DEVICES chooses the machine.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <span>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "tests/soak/life.h"
#include "tests/soak/soak.h"

extern char** environ;

namespace weir::soak {
namespace {

// exit statuses of a lie's process
constexpr int caught_mismatch = 10, caught_loss = 11, caught_refusal = 12, caught_nothing = 13, died = 14;

struct arguments {
  plan of_run;
  double budget = 20;  // seconds for each lie
  std::string only;
};

[[noreturn]] void usage(std::string const& why) {
  std::fprintf(stderr,
               "soak: %s\nusage: soak [--minutes M | --seconds S] [--least N] [--soon 1] [--seed X] [--budget S] "
               "[--only LIE|none]\n",
               why.c_str());
  std::exit(2);
}

arguments read(int argc, char** argv) {
  arguments a;
  for (int i = 1; i < argc; i += 2) {
    std::string const name = argv[i];
    if (i + 1 >= argc)
      usage(name + " needs a value");
    char* end = nullptr;
    double const value = std::strtod(argv[i + 1], &end);
    bool const is_number = *end == 0 && value >= 0;
    if (name == "--only")
      a.only = argv[i + 1];
    else if (!is_number)
      usage(name + " " + argv[i + 1] + " is no number");
    else if (name == "--minutes")
      a.of_run.seconds = value * 60;
    else if (name == "--seconds")
      a.of_run.seconds = value;
    else if (name == "--least")
      a.of_run.least = static_cast<std::uint64_t>(value);
    else if (name == "--soon")
      a.of_run.soon = value != 0;
    else if (name == "--seed")
      a.of_run.seed = static_cast<std::uint64_t>(value);
    else if (name == "--budget")
      a.budget = value;
    else
      usage("there is no option " + name);
  }
  return a;
}

// Runs one lie in its own process. Ends without cleanup, because the machine may be in any state.
[[noreturn]] void lie_here(arguments const& a, lie l) {
  plan p = a.of_run;
  p.told = l;
  p.seconds = a.budget;
  try {
    soak s(p);
    outcome const o = s.run([](double, outcome const&) {});
    std::printf("%.1f\t%llu\t%s\n", o.caught_after, static_cast<unsigned long long>(o.mismatches),
                (o.first_mismatch + o.failure).c_str());
    std::fflush(stdout);
    std::_Exit(o.mismatches             ? caught_mismatch
               : o.lost                 ? caught_loss
               : o.failure.empty()      ? caught_nothing
               : l == lie::skips_grants ? caught_refusal
                                        : died);
  } catch (std::exception const& e) {
    std::printf("%s\n", e.what());
    std::fflush(stdout);
    std::_Exit(died);
  }
}

struct told {
  lie l;
  int status = died;
  std::string said;
  bool caught() const noexcept {
    return status == caught_mismatch || status == caught_loss || status == caught_refusal;
  }
};

told tell(arguments const& a, lie l) {
  told out{l, died, {}};
  int ends[2];
  if (::pipe(ends) != 0)
    return out;
  std::string const seconds = std::to_string(a.budget), seed = std::to_string(a.of_run.seed), name(name_of(l));
  char const* const command[] = {"soak",          "--only", name.c_str(), "--budget",
                                 seconds.c_str(), "--seed", seed.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_addclose(&actions, ends[0]);
  ::posix_spawn_file_actions_addclose(&actions, ends[1]);
  pid_t child = 0;
  int const refused =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, const_cast<char* const*>(command), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (refused == 0) {
    char some[512];
    for (ssize_t n; (n = ::read(ends[0], some, sizeof some)) > 0;)
      out.said.append(some, static_cast<std::size_t>(n));
    int status = 0;
    ::waitpid(child, &status, 0);
    out.status = WIFEXITED(status) ? WEXITSTATUS(status) : died;
    if (WIFSIGNALED(status))
      out.said += "killed by signal " + std::to_string(WTERMSIG(status));
  } else {
    out.said = std::strerror(refused);
  }
  ::close(ends[0]);
  return out;
}

class bar {
 public:
  void operator()(double share, outcome const& o) {
    bool const person = ::isatty(2) == 1;
    if (!person && share < next_)
      return;
    next_ = share + 0.05;
    if (!person && o.seconds < said_ + 5)
      return;
    said_ = o.seconds;
    int const full = static_cast<int>((share < 1 ? share : 1) * 30);
    std::fprintf(stderr, "%s[%-30.*s] %3.0f s  %llu operations, %llu mismatches%s", person ? "\r" : "", full,
                 "##############################", o.seconds, static_cast<unsigned long long>(o.operations),
                 static_cast<unsigned long long>(o.mismatches), person ? "" : "\n");
  }

 private:
  double next_ = 0, said_ = 0;
};

void print_lie(told const& t) {
  auto const first = t.said.find('\t');
  std::string const seconds = t.caught() && first != std::string::npos ? t.said.substr(0, first) + " s" : "-";
  char const* const how = t.status == caught_mismatch  ? "mismatch"
                          : t.status == caught_loss    ? "device lost"
                          : t.status == caught_refusal ? "refused"
                          : t.status == caught_nothing ? "NOT CAUGHT"
                                                       : "DIED";
  std::printf("  %-24s %12s  %s\n", std::string(name_of(t.l)).c_str(), seconds.c_str(), how);
  if (!t.caught())
    std::printf("    %s\n", t.said.c_str());
  std::fflush(stdout);
}

int run(arguments const& a) {
  bool good = true;
#if defined(__SANITIZE_THREAD__)
  std::span<lie const> const lies;
  std::printf("no lies: to the thread sanitizer they are races of this program\n");
#else
  std::span<lie const> const lies(all_lies);
  std::printf("planted: a driver that lies, found within %.0f s each\n", a.budget);
#endif
  for (lie const l : lies) {
    told const t = tell(a, l);
    print_lie(t);
    good &= t.caught();
  }
  soak s(a.of_run);
  outcome const o = s.run(bar{});
  if (::isatty(2))
    std::fprintf(stderr, "\n");
  std::printf("%s", table(a.of_run, o).c_str());
  bool enough = true;
  for (std::size_t i = 0; i < paths; ++i)
    enough &= o.times[i] >= a.of_run.least || !possible(static_cast<path>(i), o.devices);
  std::printf("%s\n", !o.clean() ? "BROKEN"
                      : !good    ? "NOT VALID: a lie was not caught"
                      : !enough  ? "NOT VALID: a path ran too seldom"
                                 : "valid and clean");
  return o.clean() && good && enough ? 0 : 1;
}

}  // namespace
}  // namespace weir::soak

int main(int argc, char** argv) {
  using namespace weir::soak;
  if (argc > 1 && std::strcmp(argv[1], "life") == 0)
    return life_main(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "--role") == 0)
    return role_main(argc - 1, argv + 1);
  auto const a = read(argc, argv);
  if (a.only.empty())
    return run(a);
  if (a.only == "none") {
    soak s(a.of_run);
    outcome const o = s.run([](double, outcome const&) {});
    std::printf("%s", table(a.of_run, o).c_str());
    return o.clean() ? 0 : 1;
  }
  for (lie const l : all_lies) {
    if (name_of(l) == a.only)
      lie_here(a, l);
  }
  usage("there is no lie " + a.only);
}
