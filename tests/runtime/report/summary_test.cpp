// The memory summary, and torch's names for the counters.
// Threads: one.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <sstream>

#include "runtime/observe/device_counters.h"
#include "runtime/report/summary.h"

namespace weir {
namespace {

using observe::device_counters;
using observe::size_pool;

struct worked : ::testing::Test {
  worked() {
    EXPECT_TRUE(c.charge(1'000'000));
    c.gave(1'000'000, 0);
    c.handle_mapped();
    t.mapped(1'000'000);
    c.run_cut(65'536);
    t.run_cut(65'536);
    for (int i = 0; i < 5; ++i)
      t.allocated(size_pool::small, 512, 500);
    for (int i = 0; i < 3; ++i)
      t.allocated(size_pool::large, 100'352, 100'000);
    t.freed(size_pool::small, 512, 500);
    t.freed_pending(size_pool::large, 100'352, 100'000);
  }
  memory_statistics read() const { return c.read(all, {}); }
  device_counters c;
  observe::heap_counters t;
  std::array<observe::heap_counters const*, 1> const all{&t};
};

TEST_F(worked, reserved_is_allocated_pending_and_cached) {
  auto const n = read();
  for (auto part : {&statistic_by_size::all, &statistic_by_size::small, &statistic_by_size::large}) {
    EXPECT_EQ((n.reserved_bytes.*part).current,
              (n.allocated_bytes.*part).current + (n.pending_bytes.*part).current + (n.cached_bytes.*part).current);
  }
  EXPECT_EQ(n.active_bytes.all.current, n.allocated_bytes.all.current + n.pending_bytes.all.current);
}

TEST_F(worked, peaks_stay_and_totals_grow_until_they_are_reset) {
  auto n = read();
  EXPECT_EQ(n.allocated_bytes.all.peak, 5 * 512 + 3 * 100'352);
  EXPECT_EQ(n.allocated_bytes.all.current, 4 * 512 + 2 * 100'352);
  EXPECT_EQ(n.allocation.small.allocated, 5);
  EXPECT_EQ(n.allocation.small.freed, 1);
  t.reset_peak();
  c.reset_peak();
  c.reset_accumulated(all, {});
  n = read();
  EXPECT_EQ(n.allocated_bytes.all.peak, n.allocated_bytes.all.current);
  EXPECT_EQ(n.allocation.small.allocated, 0);
  EXPECT_EQ(n.allocation.small.current, 4);
  EXPECT_EQ(n.cache_hits, 0u);
}

TEST_F(worked, with_several_tallies_peaks_err_upward_as_stated) {
  ASSERT_TRUE(c.charge(std::size_t{1} << 40));
  c.gave(std::size_t{1} << 40, 0);  // more than all heaps have
  observe::heap_counters other;
  t.share(c.shared());
  other.share(c.shared());
  std::array<observe::heap_counters const*, 2> const both{&t, &other};
  std::int64_t live = read().allocated_bytes.all.current, highest = read().allocated_bytes.all.peak;
  std::mt19937_64 random(7);
  std::array<std::vector<std::size_t>, 2> blocks;
  for (int i = 0; i < 20'000; ++i) {
    std::size_t const k = random() % 2;
    observe::heap_counters& of = k ? other : t;
    if (blocks[k].empty() || random() % 2) {
      std::size_t const bytes = (random() % 64 + 1) << 15;
      blocks[k].push_back(bytes);
      of.allocated(size_pool::large, bytes, bytes - random() % 100);
      live += static_cast<std::int64_t>(bytes);
    } else {
      std::swap(blocks[k][random() % blocks[k].size()], blocks[k].back());
      of.freed(size_pool::large, blocks[k].back(), blocks[k].back() - 10);
      live -= static_cast<std::int64_t>(blocks[k].back());
      blocks[k].pop_back();
    }
    highest = std::max(highest, live);
    if (i % 100)
      continue;
    auto const n = c.read(both, {});
    ASSERT_EQ(n.allocated_bytes.all.current, live);
    ASSERT_GE(n.allocated_bytes.all.peak, highest);
    ASSERT_LE(n.allocated_bytes.all.peak, highest + 2 * std::max(observe::heap_counters::slack_bytes, highest / 8));
  }
}

TEST_F(worked, the_limit_counts_what_is_reserved) {
  c.set_limit(1'100'000);
  EXPECT_FALSE(c.charge(100'001));
  EXPECT_TRUE(c.charge(100'000));
  c.gave(0, 100'000);
  EXPECT_EQ(read().reserved_bytes.all.current, 1'000'000);
}

TEST_F(worked, the_summarys_byte_columns_add_up) {
  memory_report now{};
  now.on = device(1);
  now.capacity = 16'000'000'000;
  std::string const text = report::summary(read(), now, {}, {});
  std::istringstream lines(text);
  std::map<std::string, std::vector<long long>> rows;
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    if (line.size() < 14)
      continue;
    std::string name = line.substr(0, 14);
    name.erase(name.find_last_not_of(' ') + 1);
    std::string rest = line.substr(14);
    std::erase(rest, ',');
    std::istringstream numbers(rest);
    for (long long n; numbers >> n;)
      rows[name].push_back(n);
  }
  ASSERT_EQ(rows["reserved"].size(), 4u) << text;
  EXPECT_EQ(rows["reserved"][0], 1'000'000);
  EXPECT_EQ(rows["reserved"][0], rows["= allocated"][0] + rows["+ pending"][0] + rows["+ cached"][0]) << text;
  EXPECT_EQ(rows["live blocks"][0], rows["  small"][0] + rows["  large"][0]) << text;
  EXPECT_LE(count, 12) << text;
  EXPECT_NE(text.find("gpu:1"), std::string::npos);
  EXPECT_NE(text.find("14.9 GiB"), std::string::npos);
}

TEST_F(worked, flat_has_torchs_keys_in_torchs_order) {
  auto const flat = read().flat();
  EXPECT_TRUE(std::is_sorted(flat.begin(), flat.end(), [](auto const& a, auto const& b) { return a.first < b.first; }));
  std::map<std::string, std::int64_t> const by_name(flat.begin(), flat.end());
  EXPECT_EQ(by_name.size(), flat.size());
  EXPECT_EQ(by_name.at("allocated_bytes.all.current"), 4 * 512 + 2 * 100'352);
  EXPECT_EQ(by_name.at("reserved_bytes.all.peak"), 1'000'000);
  EXPECT_EQ(by_name.at("active.large_pool.current"), 3);
  EXPECT_EQ(by_name.at("allocation.small_pool.freed"), 1);
  EXPECT_EQ(by_name.at("inactive_split_bytes.all.current"),
            by_name.at("reserved_bytes.all.current") - by_name.at("active_bytes.all.current"));
  for (char const* key : {"num_ooms", "num_alloc_retries", "num_sync_all_streams", "num_device_alloc",
                          "num_device_free", "max_split_size", "oversize_allocations.current", "oversize_segments.peak",
                          "segment.all.allocated", "requested_bytes.all.current", "inactive_split.large_pool.peak"}) {
    EXPECT_TRUE(by_name.count(key)) << key;
  }
}

}  // namespace
}  // namespace weir
