// Refuses every driver call in turn, with each possible status: alone, with later calls, and for good.
// WEIR_TEST_SEEDS=n tries n/8 failures of each scenario, at most all; WEIR_TEST_SEED=s repeats one.
// Threads: one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/faults/trial.h"

namespace weir::faults {
namespace {

constexpr std::uint64_t machines = 4;  // seeds, from 1
constexpr std::uint64_t without_end = driver::fault_injector::without_end;

std::vector<expectation> expectations(scenario const& s) {
  std::vector<expectation> all{undisturbed_once_warm(s, 1)};
  for (std::uint64_t seed = 2; seed <= machines; ++seed)
    all.push_back(undisturbed(s, seed));
  return all;
}

std::vector<code> codes_of(call c) {
  std::vector<code> all;
  for (int i = 0; i < driver::code_count; ++i) {
    if (driver::contract_of(c).has(static_cast<code>(i)))
      all.push_back(static_cast<code>(i));
  }
  return all;
}

struct failing_calls : ::testing::TestWithParam<scenario> {};

TEST_P(failing_calls, leave_all_whole_and_the_scenario_runs) {
  scenario const& s = GetParam();
  auto const e = expectations(s);
  std::uint64_t all = 0;
  for (call c : e[0].calls)
    all += 3 * codes_of(c).size();
  drawn_failures failures(all, 150, s.with.check_races ? 4 : 1);
  pair_counts counts{};
  while (failures.next()) {
    failure f;
    f.seed = 1 + failures.seed() % machines;
    std::uint64_t const mode = failures.index() % 3;
    std::uint64_t index = failures.index() / 3;
    auto const& calls = e[0].calls;
    for (f.call.k = 1; index >= codes_of(calls[f.call.k - 1]).size(); ++f.call.k)
      index -= codes_of(calls[f.call.k - 1]).size();
    f.call.with = codes_of(calls[f.call.k - 1])[index];
    f.call.more = mode == 0 ? 0 : mode == 1 ? without_end : 1 + failures.seed() % 4;
    std::string const wrong = try_again(s, f, e[f.seed - 1], counts);
    ASSERT_EQ(wrong, "") << f.text() << " (" << driver::name_of(calls[f.call.k - 1])
                         << "); replay with WEIR_TEST_SEED=" << failures.seed();
  }
}

INSTANTIATE_TEST_SUITE_P(of, failing_calls, ::testing::ValuesIn(scenarios().begin(), scenarios().end()),
                         [](auto const& info) { return info.param.name; });

// Again under a checker: a refused call must not count as done, or the checker makes false reports.
std::vector<scenario> looked_on() {
  std::vector<scenario> all(scenarios().begin(), scenarios().end());
  for (auto& s : all)
    s.with.check_races = true;
  return all;
}
INSTANTIATE_TEST_SUITE_P(checked, failing_calls, ::testing::ValuesIn(looked_on()),
                         [](auto const& info) { return info.param.name; });

using row = std::pair<call, std::vector<code>>;
std::vector<row> table_of_pairs() {
  std::vector<row> all;
  for (std::size_t c = 0; c < driver::call_count; ++c) {
    if (auto const codes = codes_of(static_cast<call>(c)); !codes.empty())
      all.emplace_back(static_cast<call>(c), codes);
  }
  return all;
}

TEST(contracts, every_status_of_every_call_was_injected) {
  if (undisturbed_only())
    GTEST_SKIP() << "a checker looks on";
  pair_counts counts{};
  for (scenario const& s : scenarios()) {
    auto const e = expectations(s);
    for (std::uint64_t k = 1; k <= e[0].calls.size(); ++k) {
      call const c = e[0].calls[k - 1];
      for (code with : codes_of(c)) {
        if (counts[static_cast<std::size_t>(c)][static_cast<std::size_t>(with)])
          continue;
        failure f;
        f.call.k = k;
        f.call.with = with;
        ASSERT_EQ(try_again(s, f, e[0], counts), "") << s.name << ", " << f.text() << " (" << driver::name_of(c) << ")";
      }
    }
  }
  std::uint64_t injected = 0;
  for (auto const& [c, codes] : table_of_pairs()) {
    for (code k : codes) {
      bool const was = counts[static_cast<std::size_t>(c)][static_cast<std::size_t>(k)] > 0;
      injected += was;
      EXPECT_TRUE(was) << driver::name_of(c) << " never answered " << driver::name_of(k)
                       << ": add a scenario that makes this call";
    }
  }
  std::printf("injected: %llu pairs of call and status, of %zu calls, in %zu scenarios\n",
              static_cast<unsigned long long>(injected), table_of_pairs().size(), scenarios().size());
}

// Compares the table with docs/lab/failing-calls.md; WEIR_WRITE_DOCS=1 writes it there.
TEST(contracts, are_in_the_document) {
  std::string const path = WEIR_DOCS "/failing-calls.md", mark = "<!-- pairs -->\n";
  std::ifstream in(path);
  if (!in)
    GTEST_SKIP() << "no " << path << " here";
  std::string const text{std::istreambuf_iterator<char>(in), {}};
  std::string table = "| call | pairs | what it may answer |\n| --- | --- | --- |\n";
  std::size_t pairs = 0;
  for (auto const& [c, codes] : table_of_pairs()) {
    table += "| `" + std::string(driver::name_of(c)) + "` | " + std::to_string(codes.size()) + " | ";
    for (code k : codes)
      table += std::string(k == codes[0] ? "" : ", ") + std::string(driver::name_of(k));
    table += " |\n";
    pairs += codes.size();
  }
  table += "| " + std::to_string(table_of_pairs().size()) + " calls | " + std::to_string(pairs) + " | |\n";
  auto const from = text.find(mark), to = text.rfind(mark);
  ASSERT_TRUE(from != std::string::npos && to > from) << "no two marks in " << path;
  if (std::getenv("WEIR_WRITE_DOCS"))
    std::ofstream(path) << text.substr(0, from + mark.size()) + table + text.substr(to);
  else
    EXPECT_EQ(text.substr(from + mark.size(), to - from - mark.size()), table) << "WEIR_WRITE_DOCS=1 writes it";
}

}  // namespace
}  // namespace weir::faults
