// The long life as a program: planted leaks in processes of their own, then the honest run, and its table.
// Threads: one.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "tests/soak/child_process.h"
#include "tests/soak/life.h"

namespace weir::soak {
namespace {

[[noreturn]] void usage(std::string const& why) {
  std::fprintf(stderr,
               "soak: %s\nusage: soak life [--minutes M | --seconds S] [--seed X] [--actors N] [--only ACT,ACT] "
               "[--leak KIND]\n",
               why.c_str());
  std::exit(2);
}

life_plan read(int argc, char** argv) {
  life_plan p;
  if (char const* const length = std::getenv("WEIR_TEST_LIFE_SECONDS"); length && *length) {
    char* end = nullptr;
    p.seconds = std::strtod(length, &end);
    if (*end || !(p.seconds > 0))
      usage(std::string("WEIR_TEST_LIFE_SECONDS=") + length + " is no number of seconds");
  }
  for (int i = 0; i < argc; i += 2) {
    std::string const name = argv[i];
    if (i + 1 >= argc)
      usage(name + " needs a value");
    char const* const text = argv[i + 1];
    char* end = nullptr;
    double const value = std::strtod(text, &end);
    bool const is_number = *end == 0 && end != text && value >= 0;
    if (name == "--only") {
      p.only = text;
    } else if (name == "--leak") {
      for (leak const l : all_leaks) {
        if (name_of(l) == text)
          p.planted = l;
      }
      if (p.planted == leak::none)
        usage(std::string("there is no leak ") + text);
    } else if (!is_number) {
      usage(name + " " + text + " is no number");
    } else if (name == "--minutes") {
      p.seconds = value * 60;
    } else if (name == "--seconds") {
      p.seconds = value;
    } else if (name == "--seed") {
      p.seed = static_cast<std::uint64_t>(value);
    } else if (name == "--actors") {
      p.actors = static_cast<int>(value);
    } else {
      usage("there is no option " + name);
    }
  }
  if (p.actors < 1 || !(p.seconds > 0))
    usage("a run has one actor or more, and a length");
  return p;
}

int play(char const* role, char** words) {
  try {
    if (std::strcmp(role, "rank") == 0)
      return rank_role(words);
    if (std::strcmp(role, "reader") == 0)
      return reader_role(words);
    if (std::strcmp(role, "busy") == 0)
      return busy_role(words);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "soak: the process of the role %s: %s\n", role, e.what());
  }
  return 1;
}

std::string in_words(double ns) {
  char out[32];
  if (ns < 1e4)
    std::snprintf(out, sizeof out, "%.0f ns", ns);
  else if (ns < 1e7)
    std::snprintf(out, sizeof out, "%.1f us", ns * 1e-3);
  else
    std::snprintf(out, sizeof out, "%.1f ms", ns * 1e-6);
  return out;
}

}  // namespace

std::string table(life_plan const& p, life_outcome const& o) {
  std::string out;
  char line[200];
  std::snprintf(line, sizeof line, "%s; %.0f s, %d actors, seed %llu, %zu rests\n", o.machine.c_str(), o.seconds,
                p.actors, static_cast<unsigned long long>(p.seed), o.rests);
  out += line;
  out += "\nact                            times     refused\n";
  for (auto const& a : o.acts) {
    std::snprintf(line, sizeof line, "%-24s %11llu %11llu\n", std::string(a.act).c_str(),
                  static_cast<unsigned long long>(a.times), static_cast<unsigned long long>(a.refused));
    out += line;
  }
  out += "\nheld at rest           first quarter    last quarter          bound   an act, early and late\n";
  for (auto const& g : o.grew) {
    // A run has too many sizes of blocks to print those that did not grow.
    if (g.of >= measure::host_blocks && !g.too_much())
      continue;
    std::snprintf(line, sizeof line, "%-20s %15lld %15lld %14lld %12.3f %12.3f%s\n", name_of(g.of).c_str(),
                  static_cast<long long>(g.median[0]), static_cast<long long>(g.median[3]),
                  static_cast<long long>(g.bound), g.early, g.late,
                  g.too_much() ? "  GREW"
                  : g.judged() ? ""
                               : "  too few");
    out += line;
  }
  out += "\ncall                         count   first quarter    last quarter\n";
  for (auto const& s : o.slowed) {
    std::snprintf(line, sizeof line, "%-20s %13llu %15s %15s%s\n", std::string(s.call).c_str(),
                  static_cast<unsigned long long>(s.first.count() + s.last.count()),
                  in_words(s.first.quantile_ns(0.5)).c_str(), in_words(s.last.quantile_ns(0.5)).c_str(),
                  s.too_much() ? "  SLOWER"
                  : s.judged() ? ""
                               : "  too few");
    out += line;
  }
  return out;
}

life_outcome live(life_plan const& p) {
  life l(p);
  double said = 0;
  return l.run([&](double share, sample const& s) {
    if (share < said)
      return;
    while (said <= share)
      said += 0.1;
    std::fprintf(stderr, "soak: %3.0f %%, %llu acts", share * 100, static_cast<unsigned long long>(s.ends));
    for (measure const m : {measure::host_bytes, measure::resident, measure::used_addresses})
      std::fprintf(stderr, ", %.1f MiB %s", static_cast<double>(s.at(m)) / (1 << 20), name_of(m).c_str());
    std::fprintf(stderr, "\n");
  });
}

int life_main(int argc, char** argv) {
  life_plan p = read(argc - 1, argv + 1);
  life_outcome o = live(p);
  // Among other programs a short life hides a planted leak, of time above all: two longer ones follow.
  for (int more = 0; more < 2 && p.planted != leak::none && !o.found(p.planted) && o.failure.empty(); ++more) {
    p.seconds *= 3;
    o = live(p);
  }
  std::printf("%s\n", table(p, o).c_str());
  // Among other programs a few minutes may show a growth that is none. A real one shows in the next life, too.
  bool const is_short = p.seconds < 300;
  if (is_short && p.planted == leak::none && !o.clean() && o.failure.empty()) {
    std::printf("it grew, from seed %llu: once more, from the next one\n", static_cast<unsigned long long>(p.seed));
    ++p.seed;
    o = live(p);
    std::printf("%s\n", table(p, o).c_str());
  }
  if (!o.failure.empty())
    std::printf("BROKEN: %s\n", o.failure.c_str());
  if (p.planted != leak::none) {
    std::printf("a leak of %s %s after %.1f s\n", std::string(name_of(p.planted)).c_str(),
                o.found(p.planted) ? "was found" : "WAS NOT FOUND", o.seconds);
    return o.found(p.planted) && o.failure.empty() ? 0 : 1;
  }
  if (!o.clean()) {
    std::printf("repeat: soak life --seconds %.0f --seed %llu --actors %d%s%s\n", p.seconds,
                static_cast<unsigned long long>(p.seed), p.actors, p.only.empty() ? "" : " --only ", p.only.c_str());
    return 1;
  }
  std::printf("nothing grew\n");
  return 0;
}

int role_main(int argc, char** argv) {
  return argc > 1 ? play(argv[1], argv + 2) : 2;
}

}  // namespace weir::soak
