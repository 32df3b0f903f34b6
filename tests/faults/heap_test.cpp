// Every allocation of the host's heap refused in turn, alone, with a few after it, and for good: nothing ends the process, nothing
// is lost, and the scenario then runs.
// WEIR_TEST_SEEDS=n tries n/8 failures of each scenario, all of them when there are no more; WEIR_TEST_SEED=s tries that one again.
#include <gtest/gtest.h>

#include "tests/faults/heap.h"
#include "tests/faults/trial.h"

namespace weir::faults {
namespace {

struct failing_heap : ::testing::TestWithParam<scenario> {};

TEST_P(failing_heap, leaves_everything_whole_and_the_scenario_then_runs) {
  scenario const& s = GetParam();
  expectation const e = undisturbed_once_warm(s, 1);
  drawn_failures failures(3 * e.allocations, 150);
  pair_counts counts{};
  while (failures.next()) {
    std::uint64_t const mode = failures.index() % 3;
    failure f;
    f.allocation = 1 + failures.index() / 3;
    f.more_allocations = mode == 0 ? 0 : mode == 1 ? heap::without_end : 1 + failures.seed() % 4;
    std::string const wrong = try_again(s, f, e, counts);
    ASSERT_EQ(wrong, "") << f.text() << "; replay with WEIR_TEST_SEED=" << failures.seed();
  }
}

INSTANTIATE_TEST_SUITE_P(of, failing_heap, ::testing::ValuesIn(scenarios().begin(), scenarios().end()), [](auto const& info) { return info.param.name; });

}  // namespace
}  // namespace weir::faults
