// options::deterministic: the same calls give the same places, whenever the machine's work is done and seen to be done.
// Seeds as tests/support/seeds.h says, one in 25 of them: each program runs on fifty machines, ten under sanitizers.
// Threads: one.
#include <gtest/gtest.h>

#include <set>

#include "tests/model/places_program.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

constexpr std::uint64_t machines = tests::sanitized ? 10 : 50;

std::size_t courses(std::uint64_t calls, options o, std::size_t memory) {  // different ones among them
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= machines; ++machine) {
    tests::places_program p(calls, machine, o, memory);
    seen.insert(p.run());
    EXPECT_TRUE(p.wrong().ok()) << p.wrong();
  }
  return seen.size();
}

TEST(deterministic, the_same_calls_give_the_same_places_on_fifty_machines) {
  for (std::uint64_t const calls : tests::seeds("deterministic", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{64} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, also_when_memory_is_short) {
  for (std::uint64_t const calls : tests::seeds("deterministic_short", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{6} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, without_it_places_hang_on_what_was_seen_complete) {
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= 50 && seen.size() < 2; ++machine) seen.insert(tests::places_program(1, machine, {}, std::size_t{64} << 20).run());
  EXPECT_EQ(seen.size(), 2u) << "nothing here would tell";
}

}  // namespace
}  // namespace weir
