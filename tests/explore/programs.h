// The programs that have tapes, by name, for their tests and for the prover under planted defects.
// Threads: each program's own.
#pragma once
#include <stdexcept>
#include <string_view>

#include "simulator/checker/race_checker.h"
#include "simulator/threads/thread_scheduler.h"
#include "tests/explore/ahead_program.h"
#include "tests/explore/capture_program.h"
#include "tests/explore/clocks_program.h"
#include "tests/explore/graph_program.h"
#include "tests/explore/memory_program.h"
#include "tests/explore/open_program.h"
#include "tests/explore/pinned_program.h"
#include "tests/explore/pool_program.h"
#include "tests/explore/promise_program.h"
#include "tests/explore/refused_program.h"
#include "tests/explore/registration_program.h"
#include "tests/explore/short_program.h"
#include "tests/explore/spill_program.h"
#include "tests/explore/thread_programs.h"
#include "tests/model/cache_program.h"
#include "tests/model/handoff_program.h"
#include "tests/model/verdict.h"

namespace weir::tests {

struct explored {
  char const* name;
  void (*run)(trial&);
  enum class watched : std::uint8_t { no, by_a_ledger, by_a_checker, by_handles } how = watched::no;

  explore_options options() const {
    explore_options o;
    o.name = name;
    if (how == watched::by_a_ledger)
      o.around = [](std::unique_ptr<driver::driver> m) { return std::make_unique<ledger>(std::move(m)); };
    if (how == watched::by_a_checker) {
      o.around = [](std::unique_ptr<driver::driver> m) { return driver::check::wrap(std::move(m)).machine; };
      o.judge = [](trial& t) {
        for (auto const& f : t.machine().checker()->findings())
          t.fail("the checker: " + std::string(driver::check::name_of(f.what)) + ": " + f.text);
      };
    }
    if (how == watched::by_handles) {
      o.around = [](std::unique_ptr<driver::driver> m) { return std::make_unique<driver::handle_watch>(std::move(m)); };
      o.judge = registrations_end_among_threads::judge;
    }
    return o;
  }
};

inline constexpr explored explored_programs[] = {
    {"memory_among_threads", [](trial& t) { memory_among_threads run(t); }},
    {"clocks_among_threads", [](trial& t) { clocks_among_threads run(t); }, explored::watched::by_a_ledger},
    {"captures_among_threads", [](trial& t) { captures_among_threads run(t); }, explored::watched::by_a_checker},
    {"graphs_among_threads", [](trial& t) { graphs_among_threads run(t); }, explored::watched::by_a_checker},
    {"caches", small_blocks_among_threads},
    {"handed_over", [](trial& t) { handed_over_among_threads run(t); }},
    {"owned_lock", biased_lock_among_threads},
    {"marks", marks_among_threads},
    {"given_back", memory_given_back_among_threads},
    {"pools_end", pools_end_among_threads},
    {"pool_ends_under_guards", pool_ends_under_guards},
    {"knowledge", knowledge_among_threads},
    {"crew", crew_among_threads},
    {"history", history_among_threads},
    {"short", [](trial& t) { short_among_threads(t).run(); }},
    {"far_ahead", [](trial& t) { far_ahead(t).run(); }},
    {"refused", [](trial& t) { refused_among_threads(t).run(); }},
    {"pool", [](trial& t) { pool_among_threads(t).run(); }},
    {"pinned", [](trial& t) { pinned_among_threads(t).run(); }},
    {"opened", [](trial& t) { opened_among_threads run(t); }},
    {"registrations", [](trial& t) { registrations_end_among_threads run(t); }, explored::watched::by_handles},
    {"promises", [](trial& t) { promises_among_threads run(t); }},
    {"spill", [](trial& t) { spill_among_threads(t).run(); }, explored::watched::by_a_checker},
};

// Throws: std::runtime_error if there is no such program.
inline explored const& explored_program(std::string_view name) {
  for (auto const& p : explored_programs) {
    if (p.name == name)
      return p;
  }
  throw std::runtime_error("no program \"" + std::string(name) + "\" is explored (tests/explore/programs.h)");
}

// Runs the program's tapes, then `runs` runs by seed. Returns: number of runs.
inline std::uint64_t explore_program(std::string_view name, std::uint64_t runs, std::uint64_t part = 0,
                                     std::uint64_t parts = 1) {
  auto const& p = explored_program(name);
  auto o = p.options();
  o.runs = runs, o.part = part, o.parts = parts;
  return explore(o, p.run);
}

// One run, and the check that found its failure.
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
  if (wrong.empty())
    return v;
  auto const says = [&](char const* words) { return wrong.find(words) != std::string::npos; };
  bool const stray = says("stray") || says("device lost") || says("the device is lost");
  bool const order = says("must be known") || says("is said to be") || says("is not known");
  bool const refused =
      says("spoiled") || says("captured stream") || says("answered not permitted") || says("memory is refused");
  if (says("the checker: "))
    v.note(says("the checker: race") ? check::race : check::lifetime, wrong);
  if (refused)
    v.note(check::answers, wrong);
  v.note(stray                                ? check::stray
         : order                              ? check::order
         : says("overwritten")                ? check::bytes
         : says("stuck") || says("waits for") ? check::stuck
                                              : check::invariants,
         wrong);
  return v;
}

}  // namespace weir::tests
