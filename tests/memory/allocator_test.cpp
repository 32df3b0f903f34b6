// The allocator of one device on stepped machines: what is reused and when, and what is refused.
// Threads: one.
#include "tests/memory/allocations.h"

namespace weir {
namespace {

using tests::allocations;
using tests::memory_bench;

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
    for (int i = 0; q != p && i < 2000; ++i)
      q = take(a, bytes);  // slots of the slab before it
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
  EXPECT_THROW(take(a, ~std::size_t{0} - 100), out_of_memory) << "a size that overflowed";
  refused([&] { take(a, 100, 48); });
  refused([&] { take(a, 100, std::size_t{1} << 40); });
  refused([&] { take(bench.stream(1), 100); });
  EXPECT_THROW(take(a, std::size_t{1} << 50), out_of_memory);
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
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(f.fence().ok());  // its numbers are ahead of the next registration's
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

// Regression: such a free did nothing, so that blocks stayed live, and were freed twice without a word.
TEST_F(allocations, a_lost_device_takes_frees_and_counts_them) {
  std::vector<void*> all;
  for (std::size_t const bytes : {100, 100'000, 3 << 20, 0})
    all.push_back(take(a, bytes));
  all.push_back(take(a, 5000));
  device().record_use(all[1], b, at);
  device().record_use(all[4], b, at);
  clock::stream_clock& borrowed = bench.clocks().make(0, a.handle(), clock::life::borrowed);
  all.push_back(take(borrowed, 5000));
  for (clock::stream_clock* s : {&a, &b})
    ASSERT_TRUE(bench.machine().enqueue(0, s->handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  bench.control->lose_device(0);
  EXPECT_FALSE(bench.clocks().synchronize(a.now()).ok());
  for (std::size_t i = 0; i < all.size(); ++i)
    i == 2 ? device().deallocate(all[i], &b, at) : give(all[i]);
  auto const n = device().statistics();
  EXPECT_EQ(n.allocation.all.current, 0);
  EXPECT_EQ(n.allocated_bytes.all.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_GT(n.pending_bytes.all.current, 0) << "no driver call tells whether the work there goes on";
  for (void* p : all) {
    EXPECT_FALSE(device().find(p));
    EXPECT_THROW(give(p), invalid_use) << "freed twice";
  }
  sound();
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
