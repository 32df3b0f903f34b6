// Refuses every refusable system call in turn (addresses, pages, files, threads):
// alone, with a few after it, and for good. The process survives, nothing leaks,
// and the scenario then works. Seeds: as in calls_test.cpp.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/faults/trial.h"
#include "weir/copy.h"
#include "weir/sim.h"

namespace weir::faults {
namespace {

struct refusing_system : ::testing::TestWithParam<scenario> {};

TEST_P(refusing_system, leaves_all_whole_and_the_scenario_runs) {
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
    ASSERT_EQ(wrong, "") << f.text() << " (" << system::name_of(e.system[f.system_call - 1])
                         << "); replay with WEIR_TEST_SEED=" << failures.seed();
  }
}

// Machines with threads keep memory in files: these scenarios cover the calls for files.
std::vector<scenario> with_threads() {
  std::vector<scenario> all(scenarios().begin(), scenarios().end());
  for (auto& s : all) {
    s.machine.schedule = simulated::scheduling::threads;
    s.machine.memory *= 4;  // pages are larger
  }
  return all;
}

std::vector<scenario> either_way() {
  std::vector<scenario> all = with_threads();
  all.insert(all.end(), scenarios().begin(), scenarios().end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(with_threads, refusing_system, ::testing::ValuesIn(with_threads()),
                         [](auto const& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(of, refusing_system, ::testing::ValuesIn(scenarios().begin(), scenarios().end()),
                         [](auto const& info) { return info.param.name; });

TEST(system_contracts, every_call_was_refused_in_some_scenario) {
  if (undisturbed_only())
    GTEST_SKIP() << "a checker looks on";
  pair_counts counts{};
  for (scenario const& s : either_way()) {
    expectation const e = undisturbed_once_warm(s, 1);
    for (std::uint64_t k = 1; k <= e.system.size(); ++k) {
      if (system::times_refused(e.system[k - 1]) > 0)
        continue;
      failure f;
      f.system_call = k;
      ASSERT_EQ(try_again(s, f, e, counts), "")
          << s.name << ", " << f.text() << " (" << system::name_of(e.system[k - 1]) << ")";
    }
  }
  int refused = 0;
  for (int c = 0; c < os::call_count; ++c) {
    auto const call = static_cast<os::call>(c);
    if (!os::made_often(call))
      continue;
    std::printf("%-20s%llu\n", system::name_of(call), static_cast<unsigned long long>(system::times_refused(call)));
    EXPECT_GT(system::times_refused(call), 0u)
        << system::name_of(call) << " was never refused: add a scenario that makes this call";
    ++refused;
  }
  std::printf("%d calls of the system, each refused\n", refused);
}

// Queries made once a process are refused from its start.
TEST(a_process, runs_although_startup_queries_are_refused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const all_run = [] {
    os::refuse_by([](os::call c) noexcept { return os::made_once(c); });
    for (scenario const& s : either_way()) {
      std::string const once = undisturbed(s, 1).bytes;
      if (once.empty() || undisturbed(s, 1).bytes != once)
        std::exit(2);
    }
    std::exit(0);
  };
  EXPECT_EXIT(all_run(), ::testing::ExitedWithCode(0), "");
}

// The system refuses to open the pages.
TEST(a_guarded_machine, loses_a_device_whose_pages_stay_closed) {
  runtime rt{simulated{
      .devices = 1, .memory = 4_MiB, .schedule = simulated::scheduling::seeded, .seed = 1, .protect_memory = true}};
  runtime_guard const in{rt};
  buffer const b(100);
  os::refuse_by([](os::call c) noexcept { return c == os::call::give_access; });
  EXPECT_THROW((fill(b.data(), std::byte{1}, 100), synchronize()), device_lost);
  os::refuse_by(nullptr);
  auto const found = simulation::of(rt).findings();
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].find("mprotect failed"), std::string::npos) << found[0];
}

TEST(random_numbers, differ_although_the_system_has_none) {
  os::refuse_by([](os::call) noexcept { return true; });
  std::uint64_t const one = os::random_number(), other = os::random_number();
  os::refuse_by(nullptr);
  EXPECT_NE(one, other);
}

}  // namespace
}  // namespace weir::faults
