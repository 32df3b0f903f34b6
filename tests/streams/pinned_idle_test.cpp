// Cached pinned memory: what goes back by itself, and what serves first where the host has several nodes.
// Threads: one.
#include "streams/pinned/pinned_memory.h"
#include "tests/peer/machine_fixture.h"
#include "weir/collective.h"

namespace weir {
namespace {

source_location const line_ = source_location::current();

// Unused for the stated time; others stay.
TEST(pinned_idle, idle_pages_go_back_at_a_later_allocate) {
  test::machine m;
  auto& pool = m.pinned();
  auto const reserved = [&] { return pool.statistics().reserved_bytes.all.current; };
  auto const two_segments = [&] {
    void* const a = pool.allocate(2_MiB, 0, line_);
    void* const b = pool.allocate(3_MiB, 0, line_);
    pool.deallocate(b, line_);
    return a;
  };
  std::int64_t const hour = 3'600'000'000'000;
  for (std::int64_t const after : {std::int64_t{0}, hour}) {
    pool.let_idle_go_after(after);
    pool.deallocate(two_segments(), line_);
    pool.deallocate(pool.allocate(64, 0, line_), line_);
    EXPECT_EQ(reserved(), std::int64_t(5_MiB)) << after;
  }
  pool.let_idle_go_after(1);
  void* const used = two_segments();
  void* const small = pool.allocate(64, 0, line_);
  EXPECT_EQ(reserved(), std::int64_t(2_MiB + 2_MiB)) << "in use, and the new one's";
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
  pool.deallocate(small, line_);
  pool.deallocate(used, line_);
  pool.deallocate(pool.allocate(64, 0, line_), line_);
  EXPECT_EQ(reserved(), std::int64_t(2_MiB)) << "all but the new one's";
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
}

TEST(pinned_idle, the_option_says_for_how_long_from_the_beginning) {
  using namespace std::chrono_literals;
  for (auto const& [after, stays] : {std::pair{0ms, true}, std::pair{3'600'000ms, true}, std::pair{1ms, false}}) {
    test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_idle = after});
    auto& pool = m.pinned();
    pool.deallocate(pool.allocate(3_MiB, 0, line_), line_);
    // an hour is longer, a millisecond is not
    for (std::int64_t const from = base::now_ns(); base::now_ns() - from < 3'000'000;) {}
    pool.deallocate(pool.allocate(64, 0, line_), line_);
    EXPECT_EQ(pool.statistics().reserved_bytes.all.current, std::int64_t(stays ? 3_MiB : 2_MiB)) << after.count();
  }
}

TEST(pinned_idle, pages_stay_while_a_collective_is_under_way) {
  test::machine m;
  auto& pool = m.pinned();
  pool.let_idle_go_after(1);
  std::vector<device> const both{device(0), device(1)};
  auto ranks = communicator::create_all(both);
  buffer const a(400, {.on = device(0)}), b(400, {.on = device(1)});
  pool.deallocate(pool.allocate(3_MiB, 0, line_), line_);
  ranks[0].all_reduce({a.data(), 100, float32});
  pool.deallocate(pool.allocate(64, 0, line_), line_);
  EXPECT_EQ(pool.statistics().reserved_bytes.all.current, std::int64_t(3_MiB));
  device_guard const on(1);
  ranks[1].all_reduce({b.data(), 100, float32});
  for (int d : {0, 1})
    synchronize(device(d));
  pool.deallocate(pool.allocate(64, 0, line_), line_);
  EXPECT_EQ(pool.statistics().reserved_bytes.all.current, std::int64_t(2_MiB));
}

TEST(pinned_nodes, cached_blocks_near_the_device_serve_first) {
  test::machine m;
  auto& pool = m.pinned();
  for (int d : {0, 1})
    pool.lies_near(d, d);
  void* at[2];
  for (int d : {0, 1}) {
    device_guard const on(d);
    at[d] = pool.allocate(2_MiB, 0, line_);
  }
  for (void* const one : at)
    pool.deallocate(one, line_);
  for (int round = 0; round < 2; ++round) {
    for (int d : {1, 0}) {
      device_guard const on(d);
      void* const got = pool.allocate(64, 0, line_);
      EXPECT_EQ(got, at[d]) << "gpu:" << d;
      pool.deallocate(got, line_);
    }
  }
  device_guard const on(1);
  void* const near = pool.allocate(2_MiB, 0, line_);
  void* const far = pool.allocate(2_MiB, 0, line_);
  EXPECT_EQ(near, at[1]);
  EXPECT_EQ(far, at[0]) << "far is better than new";
  for (void* const one : {near, far})
    pool.deallocate(one, line_);
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
