// The names of the habits, and their counts.
// Threads: any.
#include "simulator/machine/schedule_policy.h"

#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {
constinit base::guarded<policies_met> met;
}  // namespace

std::string_view name_of(schedule_policy h) noexcept {
  switch (h) {
    case schedule_policy::lazy: return "lazy";
    case schedule_policy::chance: return "chance";
    case schedule_policy::starved: return "starved";
    case schedule_policy::ranked: return "ranked";
    case schedule_policy::uniform: return "uniform";
    case schedule_policy::eager: return "eager";
    case schedule_policy::enumerated: return "enumerated";
    case schedule_policy::undecided: return "undecided";
  }
  return "?";
}

void count_policies(schedule_policy streams, schedule_policy threads) {
  auto all = met.lock();
  ++all->streams[static_cast<std::size_t>(streams)];
  ++all->threads[static_cast<std::size_t>(threads)];
}

policies_met all_policies_met() { return *met.lock(); }

}  // namespace weir::driver::sim
