// Runs random programs against a library, sound or with a planted defect, until a check finds a failure.
// Usage: planted_NAME --check CHECK --within N [--only] [--first RUN] [--of PROGRAM] [--tape FILE]...
//                     a defect: found by CHECK within N runs, with --only by no other; CHECK may be several:
//                     bytes,stray. --of: all runs are of that program. Tapes run first, and each must find it
//        planted_none --within N [--first RUN] [--tape FILE]...   sound: nothing is found in N runs, nor by a
//                                                                 tape
//        planted_NAME --check CHECK --within N [--first SEED] --keep FOLDER PROGRAM NAME
//            a run of that program that finds it becomes a tape
//        planted_NAME --hashes N [--first RUN] [--of PROGRAM]
//                     a line for each run: its program, its seed, and the hash of all choices, locks and
//                     driver calls of its machines. tools/same_runs compares those of two builds
// Prints one line about what was found. The exit status says whether it is as stated.
// Threads: the programs' own. They run in a child process, so that a crash is a finding too.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/rule.h"
#include "tests/explore/programs.h"
#include "tests/planted/prover.h"
#include "tests/stress/programs.h"
#include "tests/support/one_processor.h"
#include "tests/support/seeds.h"

namespace {

using weir::tests::check;
using weir::tests::name_of;

constexpr unsigned longest_run_s = 60;  // a run takes milliseconds, or seconds on a machine that is short of all
constexpr std::chrono::milliseconds time_in_threads{100};  // of a program with real threads

struct found {              // shared with the child
  std::uint64_t run = 0;    // current, or the one that found it
  std::uint64_t finds = 0;  // --only: times that the stated check found it
  check by = check::none;
  std::uint64_t tapes = 0, drifted = 0;  // tapes that found it; of them by a neighbour
  char program[160] = "";
  char what[400] = "";
};

found* of_child = nullptr;

struct stated {
  std::string by;
  std::uint64_t within = 1000, first = 1;
  bool only = false, hashes = false;
  std::vector<std::string> tapes{};
  std::string of{};                         // the only program; empty: each in turn
  std::string folder{}, program{}, name{};  // of a tape to keep
  bool states(check c) const {
    return c == check::none ? by.empty()
                            : ("," + by + ",").find("," + std::string(name_of(c)) + ",") != std::string::npos;
  }
};

using tape = weir::driver::sim::tape;

check seen_by(std::string const& program, std::uint64_t seed, tape::numbers const& draws, found& out) {
  ::alarm(longest_run_s);
  tape t(seed, draws);
  auto const v = judged_run(weir::tests::explored_program(program), t);
  std::snprintf(out.what, sizeof out.what, "%s: %s", out.program, v.what.c_str());
  return v.by;
}

// A change in the library shifts a tape: with one choice added, removed or changed it may fit again.
bool a_neighbour_finds(stated const& s, weir::tests::tape_file const& f, found& out) {
  for (std::size_t i = f.draws.size() + 1; i-- > 0;) {
    auto longer = f.draws;
    longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(i), 0);
    if (s.states(seen_by(f.program, f.seed, longer, out)))
      return true;
    longer[i] = 1;
    if (s.states(seen_by(f.program, f.seed, longer, out)))
      return true;
    if (i == f.draws.size())
      continue;
    auto other = f.draws;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    if (s.states(seen_by(f.program, f.seed, other, out)))
      return true;
    for (std::uint32_t v = 0; v < 4; ++v) {
      other = f.draws;
      other[i] = v;
      if (v != f.draws[i] && s.states(seen_by(f.program, f.seed, other, out)))
        return true;
    }
  }
  return false;
}

std::string defect_of(std::string const& tape_path) {  // PROGRAM-DEFECT.tape
  auto const from = tape_path.rfind('-') + 1;
  return tape_path.substr(from, tape_path.rfind('.') - from);
}

// Returns: whether every tape gave the stated result.
bool run_tapes(stated const& s, found& out) {
  for (auto const& path : s.tapes) {
    std::snprintf(out.program, sizeof out.program, "%s", path.substr(path.rfind('/') + 1).c_str());
    auto const f = weir::tests::tape_file::read(path);
    check const by = seen_by(f.program, f.seed, f.draws, out);
    bool const neighbour = !s.states(by) && !s.by.empty() && a_neighbour_finds(s, f, out);
    if (!s.states(by) && !neighbour) {
      out.by = by;
      if (by == check::none)
        std::snprintf(out.what, sizeof out.what, "%s no longer finds it: tools/planted --tapes %s", out.program,
                      defect_of(path).c_str());
      return false;
    }
    ++out.tapes;
    out.drifted += neighbour;
  }
  return true;
}

weir::tests::verdict made(stated const& s, std::uint64_t number, found& out) {
  auto const note = [&](char const* name, std::uint64_t seed) {
    std::snprintf(out.program, sizeof out.program, "%s %llu", name, static_cast<unsigned long long>(seed));
  };
  if (!s.of.empty()) {
    note(s.of.c_str(), number);
    for (auto const& one : weir::tests::programs_in_threads) {
      if (s.of != one.name)
        continue;
      weir::tests::verdict v;
      if (std::string const wrong = one.run(number, time_in_threads); !wrong.empty())
        v.note(check::invariants, wrong);
      return v;
    }
    for (auto const all : {weir::tests::programs_by_name(), weir::tests::programs()})
      for (auto const& one : all)
        if (s.of == one.name)
          return one.run(number);
    tape t(number);
    return judged_run(weir::tests::explored_program(s.of), t);
  }
  auto const kinds = weir::tests::programs();
  auto const& program = kinds[number % kinds.size()];
  std::uint64_t const seed = number / kinds.size() + 1;
  note(program.name, seed);
  return program.run(seed);
}

void run_all(stated const& s, found& out) {
  constexpr std::uint64_t runs_for_the_others = 4000;
  std::uint64_t seen_at = 0;
  for (out.run = 1; out.run <= s.within; ++out.run) {
    ::alarm(longest_run_s);
    auto const v = made(s, s.first + out.run - 1, out);
    if (v.ok())
      continue;
    bool const as_stated = s.states(v.by);
    if (!seen_at || !as_stated) {
      out.by = v.by;
      std::snprintf(out.what, sizeof out.what, "%s: %s", out.program, v.what.c_str());
      seen_at = out.run;
    }
    if (!s.only || !as_stated)
      return;
    ++out.finds;
    // This many runs check that no other check finds it, or all of them with WEIR_PLANTED_WHOLE=1.
    if (out.run >= runs_for_the_others && !std::getenv("WEIR_PLANTED_WHOLE"))
      break;
  }
  if (seen_at)
    out.run = seen_at;
}

// A run that crashes or hangs ends the process, which also makes outputs differ.
int print_hashes(stated const& s) {
  for (std::uint64_t run = 0; run < s.within; ++run) {
    ::alarm(longest_run_s);
    found f;
    std::uint64_t const before = tape::hash_of_ended();
    auto const v = made(s, s.first + run, f);
    std::printf("%s %016llx %s\n", f.program, static_cast<unsigned long long>(tape::hash_of_ended() - before),
                std::string(name_of(v.by)).c_str());
  }
  return 0;
}

std::uint64_t number(std::string_view word, char const* text) {
  std::uint64_t n = 0;
  auto const [end, failed] = std::from_chars(text, text + std::strlen(text), n);
  if (*text && failed == std::errc{} && !*end)
    return n;
  std::fprintf(stderr, "%.*s %s is no whole number\n", static_cast<int>(word.size()), word.data(), text);
  std::exit(2);
}

stated read(int argc, char** argv) {
  stated s;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (word == "--only")
      s.only = true;
    else if (i + 1 == argc)
      std::exit(2);
    else if (word == "--check")
      s.by = argv[++i];
    else if (word == "--hashes")
      s.hashes = true, s.within = number(word, argv[++i]);
    else if (word == "--within")
      s.within = number(word, argv[++i]);
    else if (word == "--first")
      s.first = number(word, argv[++i]);
    else if (word == "--of")
      s.of = argv[++i];
    else if (word == "--tape")
      s.tapes.emplace_back(argv[++i]);
    else if (word == "--keep" && i + 3 < argc)
      s.folder = argv[i + 1], s.program = argv[i + 2], s.name = argv[i + 3], i += 3;
    else
      std::exit(2);
  }
  s.first = weir::tests::number_from_environment("WEIR_TEST_SEED", s.first);
  return s;
}

// draws: a longer tape goes astray at any change on its way
constexpr std::size_t longest_kept = 256;

// Of five finding runs, from distant seeds, keeps the shortest tape. Returns: the exit status.
int keep(stated const& s) {
  auto const& program = weir::tests::explored_program(s.program);
  auto options = program.options();
  options.runs = s.within, options.shrink_runs = 20'000;
  weir::tests::found best;
  for (std::uint64_t k = 0; k < 5; ++k) {
    found ignored;
    ::setenv("WEIR_TEST_BASE_SEED", std::to_string(s.first + k * 100'000).c_str(), 1);
    auto const f = weir::tests::search(options, program.run);
    bool const shorter = best.at == 0 || f.shrunk.size() < best.shrunk.size();
    if (f.at && !f.shrunk_what.empty() && shorter && s.states(seen_by(s.program, f.seed, f.shrunk, ignored)))
      best = f;
  }
  if (best.at == 0 || best.shrunk.size() > longest_kept)
    return 1;
  std::string const path = s.folder + "/" + s.program + "-" + s.name + ".tape";
  weir::tests::tape_file{s.program, best.seed, {}, weir::tests::points_at_atomics, best.shrunk, best.shrunk_what}.write(
      path);
  std::printf("%s: seed %llu, %zu draws: %s\n", path.c_str(), static_cast<unsigned long long>(best.seed),
              best.shrunk.size(), best.shrunk_what.c_str());
  return 0;
}

}  // namespace

// In the place of the library's. A broken rule ends the child, as a crash does, and is a finding of its own.
void weir::base::rule_broken(char const* words, char const*, int line) noexcept {
  of_child->by = check::rule;
  std::string const program = of_child->program;
  std::snprintf(of_child->what, sizeof of_child->what, "%s: %s (line %d)", program.c_str(), words, line);
  ::_exit(0);
}

int main(int argc, char** argv) {
  stated const s = read(argc, argv);
  if (!s.program.empty())
    return keep(s);
  if (s.hashes)
    return print_hashes(s);
  void* const page = ::mmap(nullptr, sizeof(found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return 2;
  auto& f = *new (page) found;
  pid_t const child = ::fork();
  if (child < 0)
    return 2;
  if (child == 0) {
    of_child = &f;
    std::optional<weir::tests::one_processor> here;  // unless several threads run at a time
    if (std::ranges::none_of(weir::tests::programs_in_threads, [&](auto const& p) { return s.of == p.name; }))
      here.emplace();
    if (run_tapes(s, f))
      run_all(s, f);
    else
      f.run = 0;
    std::fflush(nullptr);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    f.by = check::crash;
    std::snprintf(f.what, sizeof f.what, "%s: %s", f.program,
                  WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "exit");
  }
  auto const runs = static_cast<unsigned long long>(f.by == check::none ? s.within : f.run);
  if (f.by == check::none && f.tapes < s.tapes.size()) {
    std::printf("%s\n", f.what);
  } else if (f.by == check::none) {
    std::printf("nothing found in %llu runs\n", runs);
    std::printf("seeded runs: all_programs_in_turn %llu from seed %llu\n", runs,
                static_cast<unsigned long long>(s.first));
  } else {
    std::printf("found by %s at run %llu of %llu: %s\n", std::string(name_of(f.by)).c_str(), runs,
                static_cast<unsigned long long>(s.within), f.what);
  }
  if (f.tapes > 0)
    std::printf("tapes: %llu find %s, %llu by a neighbour\n", static_cast<unsigned long long>(f.tapes),
                s.by.empty() ? "nothing" : "it", static_cast<unsigned long long>(f.drifted));
  bool const right = s.states(f.by) && f.tapes == s.tapes.size();
  if (!right)
    std::printf("stated: %s\n", s.by.empty() ? "nothing" : s.by.c_str());
  return right ? 0 : 1;
}
