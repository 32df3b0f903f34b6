// What the long life measures, and what it calls growth.
// Threads: one.
#include "tests/soak/growth.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace weir::soak {
namespace {

constexpr std::size_t size_of_100_bytes = 6;  // 104 of them

// A run of 100,000 acts as a busy machine plays it: lists that last grow to 500 blocks of a size, ever more slowly, and
// a late event maps more than half of all used addresses. Each act leaves `leaked` blocks of 104 bytes.
std::vector<sample> run_that_leaks(double leaked) {
  std::vector<sample> all;
  for (int rest = 1; rest <= 40; ++rest) {
    double const acts = rest * 2500.0;
    sample s;
    s.ends = static_cast<std::uint64_t>(acts);
    s.rarest = s.ends / 1500;
    s.of[static_cast<std::size_t>(measure::used_addresses)] =
        std::int64_t{1 << 20} * (1000 + 4 * rest + (rest > 32 ? 700 : 0));
    s.of[named_measures + size_of_100_bytes] = static_cast<std::int64_t>(acts * leaked + acts / 200);
    all.push_back(s);
  }
  return all;
}

std::vector<std::string> grown(std::vector<sample> const& run) {
  std::vector<std::string> names;
  for (auto const& g : growth_of(run)) {
    if (g.too_much())
      names.push_back(name_of(g.of));
  }
  return names;
}

TEST(growth, tells_leaked_blocks_from_what_still_grows) {
  EXPECT_EQ(grown(run_that_leaks(0.25)), std::vector<std::string>{"blocks of 104 B"});
  EXPECT_EQ(grown(run_that_leaks(0)), std::vector<std::string>{});
}

TEST(host_blocks, count_what_is_live_by_size) {
  auto const before = host_blocks_now();
  auto const bytes = host_block_bytes_now();
  auto live = [&](std::size_t size) { return host_blocks_now()[size] - before[size]; };
  EXPECT_EQ(most_bytes_of(size_of_100_bytes), 104u);
  {
    auto const block = std::make_unique<std::byte[]>(100);
    auto const page = std::make_unique<std::byte[]>(4000);
    EXPECT_EQ(live(size_of_100_bytes), 1);
    EXPECT_EQ(live(exact_sizes + 1), 1);
    EXPECT_GE(most_bytes_of(exact_sizes + 1), 4000u);
    EXPECT_GE(host_block_bytes_now() - bytes, 4100);
  }
  EXPECT_EQ(host_block_bytes_now(), bytes);
  EXPECT_EQ(live(size_of_100_bytes), 0);
  EXPECT_EQ(live(exact_sizes + 1), 0);
}

TEST(time_of_thread, counts_work_and_no_sleep) {
  auto const before = time_of_thread();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_LT(time_of_thread() - before, std::chrono::milliseconds(20));
  auto const began = time_of_thread();
  while (time_of_thread() - began < std::chrono::milliseconds(1)) {}
}

}  // namespace
}  // namespace weir::soak
