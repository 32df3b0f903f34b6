// The names of the habits, and their counts.
// Threads: any.
#include "simulator/machine/schedule_policy.h"

#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {
constinit base::guarded<policies_met> met;
}  // namespace

std::string_view name_of(schedule_policy h) noexcept {
  static constexpr std::array<std::string_view, policy_count> names{"lazy",    "chance", "starved",    "ranked",
                                                                    "uniform", "eager",  "enumerated", "undecided"};
  return names[static_cast<std::size_t>(h)];
}

void count_policies(schedule_policy streams, schedule_policy threads) {
  auto all = met.lock();
  ++all->streams[static_cast<std::size_t>(streams)];
  ++all->threads[static_cast<std::size_t>(threads)];
}

policies_met all_policies_met() { return *met.lock(); }

}  // namespace weir::driver::sim
