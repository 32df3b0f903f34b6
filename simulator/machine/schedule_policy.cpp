// The names of the habits, and their counts.
// Threads: any.
#include "simulator/machine/schedule_policy.h"

#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {
constinit base::guarded<habits_met> met;
}  // namespace

std::string_view name_of(habit h) noexcept {
  switch (h) {
    case habit::lazy: return "lazy";
    case habit::chance: return "chance";
    case habit::starved: return "starved";
    case habit::ranked: return "ranked";
    case habit::uniform: return "uniform";
    case habit::eager: return "eager";
    case habit::enumerated: return "enumerated";
    case habit::undecided: return "undecided";
  }
  return "?";
}

void count_habits(habit streams, habit threads) {
  auto all = met.lock();
  ++all->streams[static_cast<std::size_t>(streams)];
  ++all->threads[static_cast<std::size_t>(threads)];
}

habits_met all_habits_met() { return *met.lock(); }

}  // namespace weir::driver::sim
