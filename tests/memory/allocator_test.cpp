// The allocator of one device on stepped machines: what is reused and when, what is refused, and the recovery
// steps.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;

struct allocations : ::testing::Test {
  explicit allocations(options o = {})
      : bench({.devices = 2, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1}, o) {}
  memory::allocator& device() { return bench.on(0); }
  void* take(clock::stream_clock& s, std::size_t bytes, std::size_t alignment = 0) {
    return device().allocate(s, bytes, alignment, at);
  }
  void give(void* p, clock::stream_clock* last = nullptr) { device().deallocate(p, last, at); }
  // Work that the stream completes only when it is stepped.
  void busy(clock::stream_clock& s) {
    ASSERT_TRUE(bench.machine().enqueue(s.device(), s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
};

TEST_F(allocations, a_freed_block_serves_its_home_stream_at_once) {
  for (std::size_t bytes : {100, 5000, 300'000}) {
    void* const p = take(a, bytes);
    busy(a);
    give(p);
    EXPECT_EQ(take(a, bytes), p) << bytes;
  }
  EXPECT_EQ(bench.clocks().counted().fences, 0u) << "one stream alone needs no event";
  sound();
}

TEST_F(allocations, a_marked_block_waits_for_the_marked_stream) {
  for (std::size_t bytes : {100, 300'000}) {
    void* const p = take(a, bytes);
    device().record_use(static_cast<char*>(p) + bytes / 2, b, at);
    busy(b);  // after the mark, before the free: the free takes the stamp
    give(p);
    EXPECT_GT(device().statistics().pending_bytes.all.current, 0);
    EXPECT_NE(take(a, bytes), p);
    ASSERT_TRUE(bench.control->run());
    ASSERT_TRUE(bench.clocks().synchronize(b.now()).ok());
    void* q = take(a, bytes);
    for (int i = 0; q != p && i < 2000; ++i) q = take(a, bytes);  // slots of the slab before it
    EXPECT_EQ(q, p) << bytes;
    sound();
  }
}

TEST_F(allocations, a_marked_block_is_free_after_its_homes_wait) {
  void* const p = take(a, 300'000);
  device().record_use(p, b, at);
  busy(b);
  give(p);
  ASSERT_TRUE(a.wait(b.now()).ok());
  EXPECT_EQ(take(a, 300'000), p);
  EXPECT_EQ(device().statistics().pending_bytes.all.current, 0);
  sound();
}

TEST_F(allocations, another_stream_takes_a_block_behind_the_free) {
  void* const p = take(a, 1'000'000);
  busy(a);
  give(p);
  void* const q = take(b, 1'000'000);
  EXPECT_NE(q, p) << "b is not ordered behind a";
  ASSERT_TRUE(b.wait(a.now()).ok());
  EXPECT_EQ(take(b, 1'000'000), p);
  EXPECT_EQ(device().find(p)->home, &b);
  sound();
}

TEST_F(allocations, memory_freed_elsewhere_serves_its_stream_at_once) {
  void* const p = take(a, 1'000'000);
  give(p);
  ASSERT_TRUE(b.wait(a.now()).ok());
  ASSERT_EQ(take(b, 1'000'000), p);
  busy(b);
  give(p);  // a is not ordered after b
  EXPECT_NE(take(a, 1'000'000), p);
  EXPECT_EQ(take(b, 1'000'000), p);
  sound();
}

TEST_F(allocations, a_free_that_names_its_last_use_waits_for_it) {
  void* const p = take(a, 300'000);
  busy(b);
  give(p, &b);
  EXPECT_NE(take(a, 300'000), p);
  ASSERT_TRUE(a.wait(b.now()).ok());
  EXPECT_EQ(take(a, 300'000), p);
}

TEST_F(allocations, a_transferred_block_follows_its_old_stream) {
  void* const p = take(a, 300'000);
  busy(a);
  clock::stamp const used = a.now();
  device().set_stream(p, b, at);
  EXPECT_TRUE(b.covers(used));
  EXPECT_EQ(device().find(p)->home, &b);
  EXPECT_THROW(device().set_stream(p, bench.stream(1), at), invalid_use);
  give(p);
  sound();
}

TEST_F(allocations, a_transferred_block_waits_for_its_marks) {
  for (std::size_t bytes : {100, 300'000}) {
    clock::stream_clock& c = bench.stream(0);
    void* const p = take(a, bytes);
    device().record_use(p, c, at);
    device().set_stream(p, b, at);
    device().set_stream(p, a, at);
    busy(c);  // after the handover, before the free
    give(p);
    EXPECT_GT(device().statistics().pending_bytes.all.current, 0) << "the mark stands until the block is freed";
    ASSERT_TRUE(bench.control->run());
    sound();
  }
}

TEST_F(allocations, zero_bytes_have_an_address_of_their_own) {
  void* const p = take(a, 0);
  void* const q = take(a, 0);
  EXPECT_NE(p, nullptr);
  EXPECT_NE(p, q);
  EXPECT_EQ(device().find(p)->bytes, 0u);
  give(p);
  give(q);
  give(nullptr);
  EXPECT_EQ(device().statistics().allocation.all.current, 0);
}

TEST_F(allocations, blocks_have_the_requested_or_natural_alignment) {
  for (std::size_t alignment = 1; alignment <= (1 << 20); alignment *= 2)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(take(a, 100, alignment)) % alignment, 0u);
  for (std::size_t bytes : {16, 48, 64, 96, 256, 1000, 1024, 4096, 10'000, 16'384, 50'000}) {
    std::size_t const rounded = (bytes + 15) / 16 * 16, natural = bytes >= 16 << 10 ? 512 : rounded & (~rounded + 1);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(take(a, bytes)) % natural, 0u) << bytes;
  }
}

template <class Do>
invalid_use refused(Do act) {
  try {
    act();
  } catch (invalid_use const& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was refused";
  return {"", "", "", at};
}

TEST_F(allocations, wrong_frees_are_named_and_change_nothing) {
  for (std::size_t bytes : {500, 300'000}) {
    char* const p = static_cast<char*>(take(a, bytes));
    int at_random = 0;
    auto const before = device().statistics().flat();
    auto const interior = refused([&] { give(p + 129); });
    char base[32];
    std::snprintf(base, sizeof base, "%p", static_cast<void*>(p));
    EXPECT_NE(interior.operands().find("129 B inside"), std::string::npos);
    EXPECT_NE(interior.remedy().find(base), std::string::npos) << "the base is named";
    refused([&] { give(&at_random); });
    EXPECT_EQ(device().statistics().flat(), before);
    give(p);
    EXPECT_NE(refused([&] { give(p); }).remedy().find("freed before"), std::string::npos);
    refused([&] { device().record_use(p, b, at); });
    sound();
  }
  void* const p = take(a, 300'000);
  device().record_use(p, b, at);
  busy(b);
  give(p);
  EXPECT_NE(refused([&] { give(p); }).operands().find("freed already"), std::string::npos)
      << "also while it is pending";
}

TEST_F(allocations, overflowing_sizes_and_odd_alignments_are_refused) {
  EXPECT_NE(refused([&] { take(a, ~std::size_t{0} - 100); }).remedy().find("overflow"), std::string::npos);
  refused([&] { take(a, 100, 48); });
  refused([&] { take(a, 100, std::size_t{1} << 40); });
  refused([&] { take(bench.stream(1), 100); });
  EXPECT_THROW(take(a, std::size_t{1} << 50), out_of_memory);
  sound();
}

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
  for (int i = 0; i < 12; ++i) all.push_back(take(a, 256 << 10));
  for (void* p : all) give(p);
  ASSERT_TRUE(bench.clocks().synchronize(a.now()).ok());
  void* const q = take(b, 3'500 << 10);  // no block of a's is that large
  EXPECT_NE(q, nullptr);
  EXPECT_LE(device().statistics().reserved_bytes.all.current, 4 << 20);
  sound();
}

TEST_F(allocations, unfinished_handles_are_waited_for_before_oom) {
  std::vector<void*> all;
  for (int i = 0; i < 12; ++i) all.push_back(take(a, 256 << 10));
  busy(a);
  for (void* p : all) give(p);
  EXPECT_NE(take(b, 3'500 << 10), nullptr);  // no block is that large, and no page under a's work may be unmapped
  EXPECT_TRUE(bench.clocks().complete({a.id(), 1}));
  sound();
}

TEST_F(allocations, a_miss_polls_once_for_all_pending_blocks) {
  std::vector<void*> all;
  for (int i = 0; i < 5000; ++i) all.push_back(take(a, 64));
  auto const gate = bench.machine().hold(0, b.handle());
  ASSERT_TRUE(gate.ok());
  for (void* p : all) device().record_use(p, b, at), give(p);
  auto const before = bench.clocks().counted().polls;
  std::uint64_t const hits = device().statistics().cache_hits;
  int misses = 0;
  for (int i = 0; i < 20; ++i) take(a, 40'000 + static_cast<std::size_t>(i) * 512), ++misses;
  EXPECT_LE(bench.clocks().counted().polls - before, 20u);
  EXPECT_LT(device().statistics().cache_hits - hits, 20u) << "these did miss";
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  for (int i = 0; i < 40 && device().statistics().pending_bytes.all.current; ++i) take(a, 20'000);
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
    for (;;) all.push_back(take(a, 100'000));
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

TEST_F(allocations, empty_cache_frees_all_that_holds_no_block) {
  void* const kept = take(a, 100);
  void* const p = take(a, 2 << 20);
  void* const q = take(b, 100'000);
  device().record_use(p, b, at);
  busy(b);
  give(p);
  give(q);
  EXPECT_GE(device().empty_cache(), std::size_t{2} << 20);
  EXPECT_EQ(device().statistics().reserved_bytes.all.current, 64 << 10);
  give(kept);
  device().empty_cache();
  EXPECT_EQ(device().statistics().reserved_bytes.all.current, 0);
  EXPECT_EQ(device().statistics().segment.all.current, 0);
  sound();
}

// The stamps of the ended registration are dropped.
TEST_F(allocations, an_ended_registrations_arena_serves_the_next) {
  clock::stream_clock& f = bench.clocks().make(
      0, bench.machine().create_stream(0, driver::stream_kind::independent, 0).value, clock::life::foreign);
  void* const p = take(f, 1 << 20);
  busy(f);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(f.fence().ok());  // its numbers are ahead of the next registration's
  give(p);
  bench.clocks().retire(f);
  EXPECT_THROW(take(f, 100), invalid_use);
  void* const early = take(bench.stream(0), 1 << 19);
  EXPECT_NE(early, p) << "not before its work is done";
  ASSERT_TRUE(bench.control->run());
  clock::stream_clock& heir = bench.stream(0);
  EXPECT_EQ(take(heir, 1 << 19), p);
  EXPECT_EQ(take(b, 1 << 19), static_cast<char*>(p) + (1 << 19)) << "complete, for any stream";
  device().fence_what_came_free(heir);
  EXPECT_EQ(device().statistics().fences, 0u) << "nothing came free on the heir itself";
  sound();
}

TEST_F(allocations, many_registrations_do_not_use_up_the_addresses) {
  for (int i = 0; i < 600; ++i) {
    clock::stream_clock& f = bench.clocks().make(0, a.handle(), clock::life::foreign);
    give(take(f, 100'000));
    bench.clocks().retire(f);
    ASSERT_TRUE(bench.control->run());
  }
  EXPECT_LE(device().statistics().reserved_bytes.all.peak, 1 << 20);
  sound();
}

TEST_F(allocations, a_lost_device_refuses_and_others_live_on) {
  void* const p = take(a, 100'000);
  clock::stream_clock& other = bench.stream(1);
  bench.control->lose_device(0);
  EXPECT_FALSE(bench.clocks().synchronize(a.now()).ok());
  give(p);
  EXPECT_THROW(take(a, 100), device_lost);
  EXPECT_THROW(take(a, 3 << 20), device_lost);
  EXPECT_EQ(device().empty_cache(), 0u);
  void* const q = bench.on(1).allocate(other, 100'000, 0, at);
  bench.on(1).deallocate(q, nullptr, at);
}

// The driver itself would still serve.
TEST_F(allocations, a_device_known_as_lost_gives_nothing_more) {
  void* const p = take(a, 100'000);
  bench.clocks().note(0, {driver::code::lost});
  EXPECT_TRUE(bench.clocks().lost(0));
  EXPECT_FALSE(bench.clocks().lost(1));
  give(p);
  EXPECT_THROW(take(a, 100), device_lost);
}

TEST_F(allocations, a_peer_is_granted_every_handle_under_a_block) {
  void* const p = take(a, 2 << 20);
  EXPECT_FALSE(device().granted(p, 1));
  ASSERT_TRUE(device().grant(static_cast<char*>(p) + 5, 1).ok());
  EXPECT_TRUE(device().granted(p, 1));
  EXPECT_TRUE(device().granted(p, 0));
  clock::stream_clock& other = bench.stream(1);
  driver::touch const t{reinterpret_cast<driver::address>(p), 2 << 20, true};
  ASSERT_TRUE(bench.machine().enqueue(1, other.handle(), {&t, 1}, {[](void*) {}, nullptr, nullptr}).ok());
  ASSERT_TRUE(bench.machine().synchronize_stream(1, other.handle()).ok());
  sound();
  give(p);
  EXPECT_FALSE(device().granted(p, 1));
}

TEST_F(allocations, addresses_have_one_owner) {
  void* const p = take(a, 100);
  EXPECT_EQ(bench.memory().owner(p), &device());
  EXPECT_EQ(memory::device_memory::owner_in_process(p), &device());
  EXPECT_EQ(bench.memory().owner(&a), nullptr);
  memory_bench other({.devices = 1, .memory = 1 << 20, .schedule = simulated::scheduling::stepped, .seed = 2});
  void* const q = other.on(0).allocate(other.stream(0), 100, 0, at);
  EXPECT_EQ(bench.memory().owner(q), nullptr);
  EXPECT_EQ(memory::device_memory::owner_in_process(q), &other.on(0));
  EXPECT_THROW(device().deallocate(q, nullptr, at), invalid_use);
  other.on(0).deallocate(q, nullptr, at);
}

}  // namespace
}  // namespace weir
