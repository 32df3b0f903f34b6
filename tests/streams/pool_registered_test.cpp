// Registered pools: one handle that stays, what is served from it, and what is refused.
// Threads: one, but where a test says so.
#include <gtest/gtest.h>

#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct registered : ::testing::Test {
  runtime own{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in{own};
  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  ~registered() override { sound(); }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(simulation::of(own).findings(), std::vector<std::string>{});
  }
  static pool make(size_t limit = 16_MiB) { return pool("gradients", {.limit = limit, .registered = true}); }
  // Of the pool's mapped memory: where it is.
  static std::vector<memory_segment> segments_of(pool const& p) {
    std::vector<memory_segment> all;
    for (memory_segment const& s : memory_snapshot())
      if (s.pool == p.number())
        all.push_back(s);
    return all;
  }
  template <class Error, class Do>
  static std::string refused(Do act) {
    try {
      act();
    } catch (Error const& e) {
      return std::string(e.operation()) + ": " + std::string(e.operands());
    }
    ADD_FAILURE() << "not refused";
    return {};
  }
};

TEST_F(registered, takes_its_limit_at_once_in_one_handle) {
  auto const before = memory_stats().reserved_bytes.all.current;
  pool const gradients = make();
  EXPECT_EQ(gradients.limit(), 16_MiB);
  EXPECT_EQ(gradients.statistics().reserved, 16_MiB);
  EXPECT_EQ(gradients.statistics().allocated, 0u);
  EXPECT_EQ(memory_stats().reserved_bytes.all.current, before + std::int64_t{16_MiB});
  EXPECT_EQ(memory_stats().allocated_bytes.all.peak, 0);
  EXPECT_EQ(segments_of(gradients).size(), 1u);
}

// Slots, blocks and large ones, until it is full.
TEST_F(registered, serves_all_sizes_from_its_handle_alone) {
  pool const gradients = make();
  auto const whole = segments_of(gradients).at(0);
  std::vector<void*> all;
  for (int round = 0; round < 3; ++round)
    for (size_t const bytes : {size_t{100}, size_t{5000}, size_t{40000}, 300_KiB, 3_MiB})
      all.push_back(gradients.allocate(bytes));
  for (void* const p : all)
    EXPECT_LT(reinterpret_cast<std::uintptr_t>(p) - whole.address, whole.bytes);
  EXPECT_EQ(gradients.statistics().reserved, 16_MiB);
  for (void* const p : all)
    deallocate(p);
  synchronize();
  void* const most = gradients.allocate(15_MiB);
  deallocate(most);
}

TEST_F(registered, serves_every_stream_of_its_device) {
  pool const gradients = make();
  stream const other;
  std::vector<void*> all;
  for (int round = 0; round < 20; ++round)
    for (size_t const bytes : {size_t{100}, size_t{40000}, 300_KiB}) {
      all.push_back(gradients.allocate(other, bytes));
      fill(other, all.back(), std::byte{7}, bytes);
    }
  EXPECT_EQ(gradients.statistics().blocks, 60);
  for (void* const p : all)
    deallocate(p);
  EXPECT_EQ(gradients.statistics().reserved, 16_MiB);
}

// It borrows, and waits for what other streams used: no memory is short.
TEST_F(registered, lends_to_streams_without_an_out_of_memory) {
  pool const gradients = make();
  stream const first, second;
  void* const large = gradients.allocate(first, 15_MiB);
  fill(first, large, std::byte{1}, 15_MiB);
  deallocate(large);
  std::vector<void*> all;
  for (size_t const bytes : {size_t{100}, size_t{5000}, 300_KiB})
    all.push_back(gradients.allocate(second, bytes));
  auto const now = memory_stats();
  EXPECT_EQ(now.num_alloc_retries, 0u);
  for (auto const n : now.recovered_by)
    EXPECT_EQ(n, 0u);
  for (void* const p : all)
    deallocate(p);
}

// What another stream may still use is not free: a device wait for it counts, as in any pool.
TEST_F(registered, is_short_where_too_little_of_it_is_free) {
  runtime steps{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped}};
  runtime_guard const here(steps);
  pool const gradients = make();
  stream const other;
  void* const large = gradients.allocate(other, 15_MiB);
  fill(other, large, std::byte{1}, 15_MiB);
  deallocate(large);
  void* const p = gradients.allocate(10_MiB);
  EXPECT_EQ(p, large);
  auto const now = memory_stats();
  EXPECT_EQ(now.num_alloc_retries, 1u);
  for (size_t i = 0; i < recovery_steps.size(); ++i)
    EXPECT_EQ(now.recovered_by[i], recovery_steps[i] == "blocks behind a device wait") << recovery_steps[i];
  deallocate(p);
}

TEST_F(registered, keeps_its_pages_where_they_are) {
  pool const gradients = make();
  auto const whole = segments_of(gradients).at(0);
  deallocate(gradients.allocate(3_MiB));
  synchronize();
  set_memory_limit(32_MiB);
  EXPECT_EQ(empty_cache(), 0u);
  std::vector<void*> all;  // others want more than is left
  try {
    for (;;)
      all.push_back(allocate(1_MiB));
  } catch (out_of_memory const&) {}
  EXPECT_EQ(all.size(), 16u);
  ASSERT_EQ(segments_of(gradients).size(), 1u);
  EXPECT_EQ(segments_of(gradients)[0].address, whole.address);
  for (void* const p : all)
    deallocate(p);
}

TEST_F(registered, is_full_at_its_limit_by_name) {
  pool const gradients = make();
  void* const most = gradients.allocate(12_MiB);
  try {
    deallocate(gradients.allocate(8_MiB));
    ADD_FAILURE() << "past its limit";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().cause, memory_cause::pool_limit);
    EXPECT_EQ(e.report().pool.name, "gradients");
  }
  stream const other;
  void* rest = gradients.allocate(other, 4_MiB);
  deallocate(rest);
  deallocate(most);
}

TEST_F(registered, of_more_than_there_is_does_not_come_to_be) {
  void* const other = allocate(56_MiB);
  try {
    (void)make();
    ADD_FAILURE() << "there was room";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().rounded, 16_MiB);
    EXPECT_EQ(e.report().pool.name, "gradients");
  }
  EXPECT_EQ(memory_by_pool().size(), 0u);
  deallocate(other);
  EXPECT_THROW((void)make(~size_t{0}), out_of_memory);
  synchronize();
  pool const gradients = make();  // what was cached goes
  EXPECT_EQ(gradients.statistics().reserved, 16_MiB);
}

TEST_F(registered, gives_its_memory_to_the_device_at_its_end) {
  void* left = nullptr;
  {
    pool const gradients = make();
    left = gradients.allocate(1_MiB);
  }
  deallocate(left);
  synchronize();
  EXPECT_EQ(empty_cache(), 16_MiB);
}

TEST_F(registered, inherits_from_no_pool_that_ended) {
  {
    pool const before("before");
    deallocate(before.allocate(4_MiB));
  }
  synchronize();
  pool const gradients = make();
  EXPECT_EQ(segments_of(gradients).size(), 1u);
  EXPECT_EQ(gradients.statistics().reserved, 16_MiB);
}

TEST_F(registered, is_open_to_peers_as_all_memory_is) {
  enable_peer_access(weir::device(0), {weir::device(1)});
  pool const gradients = make();
  void* const p = gradients.allocate(1_MiB);
  EXPECT_TRUE(device().granted(p, 1));
  deallocate(p);
}

TEST_F(registered, is_refused_what_would_move_it) {
  using std::string;
  EXPECT_EQ(refused<invalid_use>([] { pool("gradients", {.registered = true}); }),
            "pool: pool gradients, registered, without a limit");
  pool gradients = make();
  EXPECT_EQ(refused<invalid_use>([&] { gradients.sleep(); }), "pool::sleep: pool gradients, which is registered");
  EXPECT_EQ(refused<invalid_use>([&] { gradients.set_limit(1_MiB); }),
            "pool::set_limit: pool gradients, which is registered");
  pool other("activations");
  EXPECT_EQ(refused<invalid_use>([&] {
              spill const s({&other, &gradients});
            }),
            "spill: pool gradients, which is registered");
  spill const s({&other});  // nothing was noted
  EXPECT_FALSE(gradients.is_asleep());
}

TEST_F(registered, does_not_begin_in_a_capture) {
  stream const s;
  stream_guard const here(s);
  (void)graph::capture(
      s, [&] { EXPECT_NE(refused<invalid_use>([] { (void)make(); }).find("is captured"), std::string::npos); });
}

}  // namespace
}  // namespace weir
