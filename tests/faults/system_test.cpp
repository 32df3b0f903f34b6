// Every call of the system that may be refused is, in turn, alone, with a few after it, and for good: address space, pages, files of
// the simulated devices, threads. Nothing ends the process, nothing is lost, and the scenario then runs.
// WEIR_TEST_SEEDS=n tries n/8 failures of each scenario, all of them when there are no more; WEIR_TEST_SEED=s tries that one again.
#include <gtest/gtest.h>

#include "tests/faults/trial.h"

namespace weir::faults {
namespace {

struct refusing_system : ::testing::TestWithParam<scenario> {};

TEST_P(refusing_system, leaves_everything_whole_and_the_scenario_then_runs) {
  scenario const& s = GetParam();
  expectation const e = undisturbed_once_warm(s, 1);
  ASSERT_FALSE(e.system.empty());
  std::uint64_t const all = 3 * e.system.size();
  drawn_failures failures(all, all <= 600 ? all : 150);
  pair_counts counts{};
  while (failures.next()) {
    std::uint64_t const mode = failures.index() % 3;
    failure f;
    f.system_call = 1 + failures.index() / 3;
    f.more_system_calls = mode == 0 ? 0 : mode == 1 ? system::without_end : 1 + failures.seed() % 4;
    std::string const wrong = try_again(s, f, e, counts);
    ASSERT_EQ(wrong, "") << f.text() << " (" << system::name_of(e.system[f.system_call - 1]) << "); replay with WEIR_TEST_SEED=" << failures.seed();
  }
}

// On machines whose work is done by threads, memory lies in files that others made: those calls come here.
std::vector<scenario> with_threads() {
  std::vector<scenario> all(scenarios().begin(), scenarios().end());
  for (auto& s : all) s.machine.how = simulated::running::threads;
  return all;
}

INSTANTIATE_TEST_SUITE_P(with_threads, refusing_system, ::testing::ValuesIn(with_threads()), [](auto const& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(of, refusing_system, ::testing::ValuesIn(scenarios().begin(), scenarios().end()), [](auto const& info) { return info.param.name; });

TEST(contracts_of_the_system, every_call_that_may_be_refused_is_made_in_some_scenario) {
  std::array<std::uint64_t, os::call_count> made{};
  for (auto const& set : {std::vector<scenario>(scenarios().begin(), scenarios().end()), with_threads()}) {
    for (scenario const& s : set) {
      for (os::call const c : undisturbed_once_warm(s, 1).system) ++made[static_cast<std::size_t>(c)];
    }
  }
  for (std::size_t c = 0; c < made.size(); ++c) EXPECT_GT(made[c], 0u) << system::name_of(static_cast<os::call>(c)) << ": add a scenario that makes this call";
}

}  // namespace
}  // namespace weir::faults
