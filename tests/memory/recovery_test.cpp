// The allocator of one device when memory is short, on stepped machines: the recovery steps, and the report.
// Threads: one.
#include "tests/memory/allocations.h"

namespace weir {
namespace {

using tests::allocations;

TEST_F(allocations, short_of_memory_a_stream_waits_for_a_free) {
  void* const p = take(a, 3 << 20);
  busy(a);
  clock::stamp const used = a.now();
  give(p);
  void* const q = take(b, 3 << 20);
  EXPECT_EQ(q, p);
  EXPECT_TRUE(b.covers(used));
  EXPECT_EQ(device().statistics().waits_inserted, 1u);
  EXPECT_EQ(device().statistics().num_alloc_retries, 1u);
  EXPECT_EQ(device().statistics().num_ooms, 0u);
  for (std::size_t i = 0; i < recovery_steps.size(); ++i)
    EXPECT_EQ(device().statistics().recovered_by[i], recovery_steps[i] == "blocks behind a device wait")
        << recovery_steps[i];
  EXPECT_THROW(take(b, 3 << 20), out_of_memory);
  give(q);
  device().reset_accumulated();
  EXPECT_EQ(std::ranges::count(device().statistics().recovered_by, 0u), std::ssize(recovery_steps));
  sound();
}

// a's part of a collective is enqueued, b's is still to come. If b waited for c, which waits behind a's part,
// the wait would be circular. The path leads through streams that carry no collective.
TEST_F(allocations, no_wait_leads_to_collectives_indirectly) {
  clock::stream_clock& c = bench.stream(0);
  a.set_carries_collectives(true);
  b.set_carries_collectives(true);
  auto const part = bench.machine().hold(0, a.handle());
  ASSERT_TRUE(part.ok());
  give(take(a, 3 << 20));
  give(take(c, 3 << 20));
  EXPECT_EQ(device().statistics().waits_inserted, 1u) << "c carries none";
  EXPECT_THROW(take(b, 3 << 20), out_of_memory);
  EXPECT_EQ(device().statistics().waits_inserted, 1u);
  ASSERT_TRUE(bench.machine().open_gate(part.value).ok());
  ASSERT_TRUE(bench.control->run());
  sound();
}

TEST_F(allocations, no_wait_is_inserted_between_collective_streams) {
  a.set_carries_collectives(true);
  b.set_carries_collectives(true);
  auto const gate = bench.machine().hold(0, a.handle());
  ASSERT_TRUE(gate.ok());
  void* const p = take(a, 3 << 20);
  give(p);
  EXPECT_THROW(take(b, 3 << 20), out_of_memory);
  EXPECT_EQ(device().statistics().waits_inserted, 0u);
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  EXPECT_NE(take(b, 3 << 20), nullptr) << "what is complete needs no wait";
  sound();
}

TEST_F(allocations, free_handles_of_one_stream_serve_another) {
  std::vector<void*> all;
  for (int i = 0; i < 12; ++i)
    all.push_back(take(a, 256 << 10));
  for (void* p : all)
    give(p);
  ASSERT_TRUE(bench.clocks().synchronize(a.now()).ok());
  void* const q = take(b, 3'500 << 10);  // no block of a's is that large
  EXPECT_NE(q, nullptr);
  EXPECT_LE(device().statistics().reserved_bytes.all.current, 4 << 20);
  sound();
}

TEST_F(allocations, unfinished_handles_are_waited_for_before_oom) {
  std::vector<void*> all;
  for (int i = 0; i < 12; ++i)
    all.push_back(take(a, 256 << 10));
  busy(a);
  for (void* p : all)
    give(p);
  EXPECT_NE(take(b, 3'500 << 10), nullptr);  // no block is that large, and no page under a's work may be unmapped
  EXPECT_TRUE(bench.clocks().complete({a.id(), 1}));
  sound();
}

TEST_F(allocations, a_miss_polls_once_for_all_pending_blocks) {
  std::vector<void*> all;
  for (int i = 0; i < 5000; ++i)
    all.push_back(take(a, 64));
  auto const gate = bench.machine().hold(0, b.handle());
  ASSERT_TRUE(gate.ok());
  for (void* p : all)
    device().record_use(p, b, at), give(p);
  auto const before = bench.clocks().counted().polls;
  std::uint64_t const hits = device().statistics().cache_hits;
  int misses = 0;
  for (int i = 0; i < 20; ++i)
    take(a, 40'000 + static_cast<std::size_t>(i) * 512), ++misses;
  EXPECT_LE(bench.clocks().counted().polls - before, 20u);
  EXPECT_LT(device().statistics().cache_hits - hits, 20u) << "these did miss";
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  for (int i = 0; i < 40 && device().statistics().pending_bytes.all.current; ++i)
    take(a, 20'000);
  EXPECT_EQ(device().statistics().pending_bytes.all.current, 0);
  sound();
}

// The allocator works afterwards.
TEST_F(allocations, a_failure_reports_what_was_tried) {
  static constexpr std::int64_t spent_ns = 100'000;
  void* const p = take(a, 3 << 20);
  auto const spend = [](void*, memory_report const&) {
    for (std::int64_t const from = base::now_ns(); base::now_ns() - from < spent_ns;) {}
    return false;
  };
  auto const id = bench.memory().add_callback(spend, nullptr, 0);
  try {
    take(a, 2 << 20);
    FAIL() << "that does not fit";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().requested, std::size_t{2} << 20);
    EXPECT_EQ(e.report().allocated, std::size_t{3} << 20);
    EXPECT_EQ(e.report().recovery.size(), 8u);
    EXPECT_GE(std::ranges::max(e.report().recovery, {}, &recovery_step::ns).ns, spent_ns) << "the callback's";
    EXPECT_NE(e.report().text().find("live blocks fill the memory"), std::string::npos) << e.report().text();
  }
  bench.memory().remove_callback(id);
  EXPECT_EQ(device().statistics().num_ooms, 1u);
  sound();
  give(p);
  EXPECT_NE(take(a, 2 << 20), nullptr);
  sound();
}

// Memory that a callback frees is used.
TEST_F(allocations, callbacks_run_in_order_without_locks) {
  struct spare {
    allocations* test;
    void* block;
    std::vector<int> called;
  } state{this, take(a, 3 << 20), {}};
  auto const second = bench.memory().add_callback(
      [](void* s, memory_report const& r) {
        auto& self = *static_cast<spare*>(s);
        self.called.push_back(2);
        EXPECT_EQ(r.requested, std::size_t{2} << 20);
        self.test->give(std::exchange(self.block, nullptr));
        return true;
      },
      &state, 2);
  auto const first = bench.memory().add_callback(
      [](void* s, memory_report const&) { return static_cast<spare*>(s)->called.push_back(1), false; }, &state, 1);
  EXPECT_NE(take(a, 2 << 20), nullptr);
  EXPECT_EQ(state.called, (std::vector<int>{1, 2}));
  bench.memory().remove_callback(first);
  bench.memory().remove_callback(second);
  EXPECT_THROW(take(a, 3 << 20), out_of_memory);
  EXPECT_EQ(state.called.size(), 2u);
  sound();
}

// Like a free by another thread after the recovery steps that would have found it.
TEST_F(allocations, frees_during_the_slow_path_are_found) {
  struct other {
    allocations* test;
    void* block;
  } state{this, take(b, 3 << 20)};
  auto const id = bench.memory().add_callback(
      [](void* s, memory_report const&) {
        auto& self = *static_cast<other*>(s);
        self.test->give(std::exchange(self.block, nullptr));
        EXPECT_TRUE(self.test->bench.clocks().synchronize(self.test->b.now()).ok());  // no step can wait for it
        return false;
      },
      &state, 0);
  EXPECT_NE(take(a, 2 << 20), nullptr);
  bench.memory().remove_callback(id);
  sound();
}

// A callback may end its own registration.
TEST_F(allocations, an_allocation_inside_a_callback_fails) {
  void* const p = take(a, 3 << 20);
  struct nested {
    allocations* test;
    std::uint64_t id = 0;
    int called = 0;
  } state{this};
  state.id = bench.memory().add_callback(
      [](void* s, memory_report const&) {
        auto& self = *static_cast<nested*>(s);
        ++self.called;
        EXPECT_THROW(self.test->take(self.test->b, 3 << 20), out_of_memory);
        self.test->bench.memory().remove_callback(self.id);
        return false;
      },
      &state, 0);
  EXPECT_THROW(take(a, 2 << 20), out_of_memory);
  EXPECT_EQ(state.called, 1);
  give(p);
  sound();
}

TEST_F(allocations, complete_free_pieces_are_found_behind_newer_ones) {
  a.set_carries_collectives(true);  // so that no wait hides the effect of polling
  b.set_carries_collectives(true);
  void* const old_one = take(a, 1 << 20);
  void* const wall = take(a, 100'000);
  void* const new_one = take(a, 2 << 20);
  busy(a);
  give(old_one);
  ASSERT_TRUE(a.fence().ok());
  auto const gate = bench.machine().hold(0, a.handle());
  ASSERT_TRUE(gate.ok());
  give(new_one);
  (void)bench.control->run();
  EXPECT_EQ(take(b, 1 << 20), old_one);
  give(wall);
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  sound();
}

TEST_F(allocations, reserved_never_passes_the_limit) {
  device().set_limit(1 << 20);
  std::vector<void*> all;
  try {
    for (;;)
      all.push_back(take(a, 100'000));
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().limit, std::size_t{1} << 20);
    EXPECT_NE(e.report().text().find("limit is reached"), std::string::npos);
  }
  EXPECT_GE(all.size(), 9u);
  EXPECT_LE(device().statistics().reserved_bytes.all.peak, 1 << 20);
  device().set_limit(0);
  EXPECT_NE(take(a, 1 << 20), nullptr);
  sound();
}

}  // namespace
}  // namespace weir
