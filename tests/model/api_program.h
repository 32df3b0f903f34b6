// What the random programs of the public API share: a seeded machine, threads, and what the checker and the machine find.
// Threads: one, unless a program runs some; the machine chooses which of them runs.
#pragma once
#include <random>
#include <string>

#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::tests {

// With a race checker for every second seed.
inline test::machine seeded_machine(std::uint64_t seed, int devices) {
  return test::machine({.devices = devices, .memory = 32_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
                       {.check_races = seed % 2 == 0});
}

// Runs play(0) to play(threads - 1), each on a thread of the machine, to their end.
template <class Play>
void run_in_threads(test::machine& m, std::string const& name, std::size_t threads, verdict& wrong, Play const& play) {
  auto machine = simulation::of(m.own);
  for (std::size_t k = 0; k < threads; ++k) {
    machine.spawn(name + " " + std::to_string(k), [&wrong, &play, k] {
      try {
        play(k);
      } catch (std::exception const& e) {
        wrong.note(check::answers, e.what());
      }
    });
  }
  try {
    machine.join();
  } catch (invalid_use const& e) {
    wrong.note(check::stuck, e.what());
  }
}

inline void judge(test::machine& m, verdict& wrong) {
  for (auto const& r : race_reports()) {
    wrong.note(r.kind == "race"                                           ? check::race
               : r.kind == "source changed" || r.kind == "host too early" ? check::host
               : r.kind == "stuck"                                        ? check::stuck
                                                                          : check::lifetime,
               r.text);
  }
  for (auto const& found : m.control().findings())
    wrong.note(check_of(found), found);
}

}  // namespace weir::tests
