// Chooses seeds, and prints the number of runs at a program's end. tools/prove adds up these lines.
// Threads: as seeds.h says.
#include "tests/support/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string_view>

#include "simulator/machine/schedule_policy.h"

namespace weir::tests {
namespace {

struct runs_of_program {
  std::uint64_t made = 0, first_seed = 0;
};
std::map<std::string, runs_of_program>& account() {
  static std::map<std::string, runs_of_program> all;
  return all;
}

class at_the_end final : public ::testing::Environment {
  void TearDown() override {
    for (auto const& [program, runs] : account())
      std::cout << "seeded runs: " << program << ' ' << runs.made << " from seed " << runs.first_seed << '\n';
    auto const met = driver::sim::all_policies_met();
    tell("streams", met.streams);
    tell("threads", met.threads);
  }
  static void tell(char const* whose, std::array<std::uint64_t, driver::sim::policy_count> const& times) {
    std::cout << "schedules of " << whose << ':';
    for (std::size_t i = 0; i < times.size(); ++i)
      std::cout << ' ' << driver::sim::name_of(static_cast<driver::sim::schedule_policy>(i)) << ' ' << times[i];
    std::cout << '\n';
  }
};
[[maybe_unused]] auto* const registered = ::testing::AddGlobalTestEnvironment(new at_the_end);

}  // namespace

std::uint64_t number_from_environment(char const* name, std::uint64_t otherwise) {
  char const* const text = std::getenv(name);
  std::string_view digits = text ? text : "";
  if (digits.empty())
    return otherwise;
  bool const hexadecimal = digits.starts_with("0x");
  if (hexadecimal)
    digits.remove_prefix(2);
  std::uint64_t n = 0;
  auto const [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), n, hexadecimal ? 16 : 10);
  if (failed == std::errc{} && end == digits.data() + digits.size())
    return n;
  std::fprintf(stderr, "%s=\"%s\" is no whole number\n", name, text);
  std::fflush(nullptr);
  std::_Exit(2);
}

seeds::seeds(std::string program, std::uint64_t otherwise, std::uint64_t part, std::uint64_t parts)
    : program_(std::move(program)) {
  if (std::uint64_t const only = number_from_environment("WEIR_TEST_SEED", 0)) {
    first_ = only;
    count_ = part == 0 ? 1 : 0;
    return;
  }
  std::uint64_t const most = number_from_environment("WEIR_TEST_MOST_SEEDS", 0),
                      wanted = number_from_environment("WEIR_TEST_SEEDS", otherwise);
  if (wanted == 0 && otherwise != 0) {
    std::fprintf(stderr, "WEIR_TEST_SEEDS=0 would test nothing\n");
    std::_Exit(2);
  }
  std::uint64_t const all = most ? std::min(most, otherwise) : wanted, share = all / parts;
  first_ = number_from_environment("WEIR_TEST_BASE_SEED", 1) + part * share;
  count_ = part + 1 == parts ? all - part * share : share;
}

std::uint64_t seeds::place::operator*() const {
  count_runs(of_.program_, 1, of_.first_);
  return seed_;
}

void count_runs(std::string const& program, std::uint64_t runs, std::uint64_t first_seed) {
  if (runs == 0)
    return;
  auto& of = account()[program];
  of.first_seed = of.made == 0 ? first_seed : std::min(of.first_seed, first_seed);
  of.made += runs;
}

}  // namespace weir::tests
