// The programs that tapes are kept of, by name: a tape of one is replayed by its test, and by the prover under planted defects.
// Threads: each program's own.
#pragma once
#include <stdexcept>
#include <string_view>

#include "runtime/base/sync_relay.h"
#include "tests/explore/clocks_program.h"
#include "tests/explore/memory_program.h"
#include "tests/explore/thread_programs.h"
#include "tests/model/cache_program.h"
#include "tests/model/verdict.h"

namespace weir::tests {

struct explored {
  char const* name;
  void (*run)(trial&);
  bool with_a_ledger = false;

  explore_options options() const {
    explore_options o;
    o.name = name;
    if (with_a_ledger) o.around = [](std::unique_ptr<driver::driver> m) { return std::make_unique<ledger>(std::move(m)); };
    return o;
  }
};

inline constexpr explored explored_programs[] = {
    {"memory_among_threads", [](trial& t) { memory_among_threads run(t); }},
    {"clocks_among_threads", [](trial& t) { clocks_among_threads run(t); }, true},
    {"caches", small_blocks_among_threads},
    {"owned_lock", owned_lock_among_threads},
    {"given_back", memory_given_back_among_threads},
    {"knowledge", knowledge_among_threads},
    {"crew", crew_among_threads},
};

// Throws: std::runtime_error where there is no such program.
inline explored const& explored_program(std::string_view name) {
  for (auto const& p : explored_programs) {
    if (p.name == name) return p;
  }
  throw std::runtime_error("no program \"" + std::string(name) + "\" is explored (tests/explore/programs.h)");
}

// The test: so many runs by seed, after its tapes.
inline std::uint64_t explore_program(std::string_view name, std::uint64_t runs, std::uint64_t part = 0, std::uint64_t parts = 1) {
  auto const& p = explored_program(name);
  auto o = p.options();
  o.runs = runs, o.part = part, o.parts = parts;
  return explore(o, p.run);
}

// One run, and which check saw what is wrong with it.
inline verdict judged_run(explored const& p, driver::sim::tape& tape) {
  explore_options const options = p.options();
  trial one(options, tape);
  try {
    p.run(one);
  } catch (base::abandoned const&) {
  } catch (std::exception const& e) {
    one.fail(std::string("the body threw: ") + e.what());
  }
  std::string const wrong = one.finish();
  verdict v;
  if (wrong.empty()) return v;
  auto const says = [&](char const* words) { return wrong.find(words) != std::string::npos; };
  bool const stray = says("stray") || says("device lost");
  bool const order = says("must be known") || says("is said to be") || says("is not known");
  v.note(stray ? check::stray : order ? check::order : says("somebody wrote") ? check::bytes : says("stuck") || says("waits for") ? check::stuck : check::invariants, wrong);
  return v;
}

}  // namespace weir::tests
