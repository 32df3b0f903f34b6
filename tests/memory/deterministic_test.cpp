// options::deterministic: the same calls give the same places, whenever the machine completes its work and
// weir notices. Seeds as tests/support/seeds.h says, one in 25 of them: each program runs on fifty machines,
// ten under sanitizers.
// Threads: one.
#include <gtest/gtest.h>

#include <set>

#include "tests/model/places_program.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

constexpr std::uint64_t machines = tests::sanitized ? 10 : 50;

// Returns: the number of different courses among the machines.
std::size_t courses(std::uint64_t calls, options o, std::size_t memory, std::uint64_t of = machines, int steps = 400,
                    std::size_t most = 0) {
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= of; ++machine) {
    tests::places_program p(calls, machine, o, memory, steps, most);
    seen.insert(p.run());
    EXPECT_TRUE(p.wrong().ok()) << p.wrong();
  }
  return seen.size();
}

TEST(deterministic, equal_calls_give_equal_places_everywhere) {
  for (std::uint64_t const calls : tests::seeds("deterministic", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{64} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, also_when_memory_is_short) {
  for (std::uint64_t const calls : tests::seeds("deterministic_short", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{6} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, also_where_the_ladder_climbs_again_and_again) {
  for (std::uint64_t const calls : tests::seeds("deterministic_ladder", 40)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{1} << 20, 4, 100, 128 << 10), 1u)
        << "1 MiB, WEIR_TEST_SEED=" << calls;
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{6} << 20, 4, 100, 768 << 10), 1u)
        << "6 MiB, WEIR_TEST_SEED=" << calls;
  }
}

// Most requests are refused.
TEST(deterministic, also_on_a_device_of_one_mebibyte) {
  for (std::uint64_t const calls : tests::seeds("deterministic_mebibyte", tests::sanitized ? 8 : 40)) {
    for (std::size_t const most : {std::size_t{32} << 10, std::size_t{256} << 10}) {
      EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{1} << 20, 4, 400, most), 1u)
          << "blocks of up to " << most << " B, WEIR_TEST_SEED=" << calls;
    }
  }
}

TEST(deterministic, emptying_the_cache_ignores_completion_order) {
  constexpr source_location at{"a test", "a test", 1};
  constexpr std::size_t bytes = 36 << 10;  // four of them on three pages
  auto const place_of_the_next = [&](bool second_is_seen) {
    tests::memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                              options{.deterministic = true});
    auto& device = bench.on(0);
    clock::stream_clock &home = bench.stream(0), *users[] = {&bench.stream(0), &bench.stream(0)};
    void* blocks[4];
    for (void*& b : blocks)
      b = device.allocate(home, bytes, 0, at);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(users[i]->wait(home.now()).ok());
      device.record_use(blocks[2 * i], *users[i], at);
      device.deallocate(blocks[2 * i], nullptr, at);
    }
    EXPECT_TRUE(bench.control->run());
    bool const seen = !second_is_seen || bench.clocks().synchronize(users[1]->now()).ok();
    EXPECT_TRUE(seen);
    device.empty_cache();
    void* const next = device.allocate(home, bytes, 0, at);
    for (void* const b : {blocks[1], blocks[3], next})
      device.deallocate(b, nullptr, at);
    return reinterpret_cast<memory::address>(next) - reinterpret_cast<memory::address>(blocks[0]);
  };
  EXPECT_EQ(place_of_the_next(false), place_of_the_next(true));
}

TEST(deterministic, without_it_places_depend_on_completion) {
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= 50 && seen.size() < 2; ++machine)
    seen.insert(tests::places_program(1, machine, {}, std::size_t{64} << 20).run());
  EXPECT_EQ(seen.size(), 2u) << "nothing here would tell";
}

}  // namespace
}  // namespace weir
