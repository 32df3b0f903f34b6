// Pages that many streams share: how little they reserve, whom a freed block serves, and how a page empties.
// Threads: one, but in the last test.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "tests/memory/reuse_machine.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using memory::page_sharing;

// The default number of streams has pages already, so each further stream shares some.
struct crowd : tests::reuse_machine {
  explicit crowd(options o = {}, std::size_t memory = std::size_t{1} << 30) : reuse_machine(o, memory) {
    for (std::uint32_t i = 0; i < o.streams_with_pages; ++i)
      owners.push_back(take(i ? bench.stream(0) : owners_stream(), 4096));
  }
  clock::stream_clock& owners_stream() { return a; }  // it has pages of its own
  clock::stream_clock& late() { return bench.stream(0); }
  std::size_t reserved() { return device().reserved(); }
  std::size_t pending() { return static_cast<std::size_t>(stats().pending_bytes.all.current); }
  void complete(clock::stream_clock& s) {
    ASSERT_TRUE(bench.control->run());
    ASSERT_TRUE(bench.clocks().synchronize(s.now()).ok());
  }
  void give_owners() {
    for (void* const p : owners)
      give(p);
  }
  std::vector<void*> owners;
};

// One page a stream would be 4,000 MiB for 8 MiB in use.
TEST(page_sharing, two_thousand_streams_reserve_at_most_64_mib) {
  tests::memory_bench bench({.devices = 1, .memory = std::size_t{16} << 30});  // its pages have 2 MiB
  std::vector<void*> held;
  for (int i = 0; i < 2000; ++i)
    held.push_back(bench.on(0).allocate(bench.stream(0), 4096, 0, at));
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  EXPECT_LE(device.reserved(), std::size_t{64} << 20);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  for (void* const p : held)
    device.deallocate(p, nullptr, at);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  device.empty_cache();
  EXPECT_EQ(device.reserved(), 0u) << "nothing is in use";
}

TEST(page_sharing, five_sizes_a_stream_reserve_at_most_128_mib) {
  tests::memory_bench bench({.devices = 1, .memory = std::size_t{16} << 30});
  for (int i = 0; i < 2000; ++i) {
    clock::stream_clock& s = bench.stream(0);
    for (std::size_t const bytes : {64, 256, 1024, 4096, 16384})
      (void)bench.on(0).allocate(s, bytes, 0, at);
  }
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  EXPECT_LE(device.reserved(), std::size_t{128} << 20) << "42 MiB are in use";
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
}

// A stream's next work is ordered after its own last use, so the block serves it without a question.
TEST(page_sharing, a_freed_block_serves_its_own_stream_at_once) {
  crowd m;
  clock::stream_clock& s = m.late();
  void* const p = m.take(s, 4096);
  m.busy(s);
  m.give(p);
  EXPECT_EQ(m.pending(), 4096u);
  auto const polls = m.bench.clocks().counted().polls;
  EXPECT_EQ(m.take(s, 4000), p);
  EXPECT_EQ(m.pending(), 0u);
  EXPECT_EQ(m.device().find(p)->home, &s);
  EXPECT_EQ(m.device().find(p)->bytes, 4000u);
  EXPECT_EQ(m.bench.clocks().counted().polls, polls);
  m.sound();
}

TEST(page_sharing, a_block_in_use_serves_no_other_stream) {
  crowd m;
  clock::stream_clock &s = m.late(), &other = m.late();
  void* const p = m.take(s, 4096);
  m.busy(s);
  m.give(p);
  for (int i = 0; i < 40; ++i)
    ASSERT_NE(m.take(m.late(), 4096), p) << "more than a page holds";
  m.complete(s);
  bool served = false;
  for (int i = 0; i < 40 && !served; ++i)
    served = m.take(other, 4096) == p;
  EXPECT_TRUE(served) << "complete, so it serves the next stream";
  m.sound();
}

TEST(page_sharing, a_marked_block_waits_for_both_streams) {
  crowd m;
  clock::stream_clock &s = m.late(), &user = m.late();
  void* const p = m.take(s, 4096);
  m.device().record_use(p, user, at);
  m.busy(s), m.busy(user);
  m.give(p);
  EXPECT_NE(m.take(s, 4096), p) << "the other stream still uses it";
  m.complete(user);
  m.complete(s);
  m.device().empty_cache();
  EXPECT_EQ(m.pending(), 0u);
  m.sound();
}

// A stream that allocates often gets the fast path; one that does so now and then costs no page.
TEST(page_sharing, a_busy_stream_gets_pages_of_its_own) {
  crowd m;
  clock::stream_clock& s = m.late();
  std::size_t const before = m.reserved();
  for (std::uint32_t i = 1; i < page_sharing::busy; ++i)
    m.give(m.take(s, 4096));
  EXPECT_LE(m.reserved(), before + 2 * page) << "shared pages";
  std::size_t const shared = m.reserved();
  void* const p = m.take(s, 4096);
  EXPECT_EQ(m.reserved(), shared + page) << "a page of its own";
  m.give(p);
  EXPECT_EQ(m.take(s, 4096), p);
  m.sound();
}

// Where memory is small, pages of busy streams would take much of it.
TEST(page_sharing, busy_streams_of_a_small_device_share_on) {
  crowd m({}, 256 * page);  // a 64th of it is four pages, fewer than the streams that have one
  std::size_t const before = m.reserved();
  for (int i = 0; i < 50; ++i) {
    clock::stream_clock& s = m.late();
    for (std::uint32_t k = 0; k < 2 * page_sharing::busy; ++k)
      m.give(m.take(s, 4096));
  }
  EXPECT_LE(m.reserved(), before + 4 * page);
  m.sound();
}

// Nor do streams that had pages once, for a large block, and gave them back.
TEST(page_sharing, busy_streams_whose_pages_went_share_on) {
  crowd m({}, 256 * page);
  std::vector<clock::stream_clock*> streams;
  for (int i = 0; i < 50; ++i)
    m.give(m.take(*streams.emplace_back(&m.late()), 4 * page));
  m.device().empty_cache();
  std::size_t const before = m.reserved();
  for (auto* const s : streams)
    for (std::uint32_t k = 0; k < 2 * page_sharing::busy; ++k)
      m.give(m.take(*s, 4096));
  EXPECT_LE(m.reserved(), before + 4 * page);
  m.sound();
}

TEST(page_sharing, a_busy_stream_takes_the_pages_of_one_that_ended) {
  crowd m({}, 256 * page);
  clock::stream_clock &ended = m.late(), &s = m.late();
  m.give(m.take(ended, 20 * page));
  m.bench.clocks().retire(ended);
  ASSERT_TRUE(m.bench.control->run());
  void* last = nullptr;
  for (std::uint32_t k = 0; k < 3 * page_sharing::busy; ++k)
    m.give(last = m.take(s, 4096));
  EXPECT_EQ(m.device().use_of(*m.device().find(m.owners[0])->pool).allocated, m.owners.size() * 4096);
  std::size_t const before = m.reserved();
  m.give(m.take(s, 18 * page));
  EXPECT_EQ(m.reserved(), before) << "the stream has the pages of the other";
  m.sound();
}

// A wholly free page is a page like any other: it moves to where another stream needs it.
TEST(page_sharing, an_empty_shared_page_serves_a_large_block) {
  crowd m({.device_limit = 40 * page, .streams_with_pages = 2});
  std::vector<clock::stream_clock*> streams;
  std::vector<void*> held;
  for (int i = 0; i < 60; ++i)
    streams.push_back(&m.late());
  for (int k = 0; k < 6; ++k)
    for (auto* const s : streams)
      held.push_back(m.take(*s, 4096)), m.busy(*s);
  EXPECT_GT(m.reserved(), 20 * page);
  for (void* const p : held)
    m.give(p);
  for (auto* const s : streams)
    m.complete(*s);
  EXPECT_NE(m.take(*streams.front(), 30 * page), nullptr) << "nothing else is in use";
  EXPECT_LE(m.reserved(), 40 * page);
  m.sound();
}

// A page that shares cannot be mapped: the stream's own heap and the recovery steps have the last word.
TEST(page_sharing, short_of_memory_the_recovery_steps_serve) {
  crowd m({.device_limit = 6 * page, .streams_with_pages = 1});
  m.give_owners();
  clock::stream_clock &big = m.late(), &s = m.late();
  void* const p = m.take(big, 6 * page);  // the owner's page has moved there
  EXPECT_THROW((void)m.take(s, 4096), out_of_memory);
  m.busy(big);
  m.give(p);
  void* const q = m.take(s, 4096);  // behind a wait, or after one
  EXPECT_NE(q, nullptr);
  EXPECT_GT(m.stats().num_alloc_retries, 0u);
  m.give(q);
  m.sound();
}

TEST(page_sharing, a_captured_stream_takes_its_graphs_memory) {
  crowd m;
  clock::stream_clock& s = m.late();
  void* const shared = m.take(s, 4096);
  ASSERT_TRUE(m.bench.machine().begin_capture(0, s.handle(), driver::capture_mode::relaxed).ok());
  s.saw_captured(true);
  void* const inside = m.take(s, 4096);
  EXPECT_NE(m.device().find(inside)->pool, m.device().find(shared)->pool);
  m.give(inside);
  auto const graph = m.bench.machine().end_capture(0, s.handle());
  ASSERT_TRUE(graph.ok());
  (void)m.bench.machine().destroy_graph(graph.value);
  s.saw_captured(false);
  m.give(shared);
  m.sound();
}

// Memory of this stream is opened to a device: the page that it shares, too, and later blocks lie elsewhere.
TEST(page_sharing, a_stream_open_to_a_peer_shares_no_more) {
  tests::memory_bench bench({.devices = 2, .memory = 1 << 30, .schedule = simulated::scheduling::stepped, .seed = 1},
                            {.streams_with_pages = 1});
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  clock::stream_clock &first = bench.stream(0), &s = bench.stream(0), &other = bench.stream(0);
  bench.core.open(1, "test", at);
  (void)device.allocate(first, 4096, 0, at);
  void* const before = device.allocate(s, 4096, 0, at);
  EXPECT_FALSE(device.granted(before, 1));
  ASSERT_TRUE(device.open_to(&s, 2).ok());
  EXPECT_TRUE(device.granted(before, 1));
  EXPECT_TRUE(device.granted(device.allocate(s, 4096, 0, at), 1));
  (void)device.allocate(other, 4096, 0, at);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
}

// A pool's shared pages sleep and wake with it, and a block that is freed meanwhile stays away.
TEST(page_sharing, shared_pages_sleep_with_their_pool) {
  crowd m;
  memory::memory_pool& pool = m.device().make_pool("many", 0);
  std::uint64_t const entered = memory::thread_caches::enter(pool);
  std::vector<void*> held;
  for (int i = 0; i < 40; ++i)
    held.push_back(m.take(m.late(), 4096));
  for (void* const p : held)
    ASSERT_EQ(m.device().find(p)->pool, &pool);
  std::size_t given = 0;
  std::size_t const before = m.reserved();
  ASSERT_TRUE(m.device().sleep(pool, nullptr, given).ok());
  EXPECT_EQ(m.reserved(), before - given);
  EXPECT_GE(given, 40u * 4096);
  m.give(held.back()), held.pop_back();
  m.sound();
  ASSERT_TRUE(m.device().wake(pool, at).ok());
  for (void* const p : held)
    EXPECT_EQ(m.device().find(p)->bytes, 4096u), m.give(p);
  memory::thread_caches::leave(entered);
  m.sound();
  m.device().end_pool(pool);
  m.sound();
}

// What is free for that time goes back, although the heap's home never enqueues anything.
TEST(page_sharing, idle_shared_pages_go_back) {
  crowd m;
  m.device().let_idle_go_after(1);
  void* const p = m.take(m.late(), 4096);
  std::size_t const before = m.reserved();
  m.give(p);
  for (int i = 0; i < 4; ++i) {  // a question, its answer, a mark, and the return
    ASSERT_TRUE(m.bench.control->run());
    m.device().return_idle();
  }
  EXPECT_LT(m.reserved(), before);
  m.sound();
}

TEST(page_sharing, a_deterministic_runtime_shares_nothing) {
  crowd m({.deterministic = true});
  std::size_t const before = m.reserved();
  (void)m.take(m.late(), 4096);
  EXPECT_EQ(m.reserved(), before + page);
}

// Blocks of a stream that has ended keep their pages until they are freed, and then serve others.
TEST(page_sharing, a_stream_that_ends_leaves_its_blocks) {
  crowd m;
  std::size_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    auto const handle = m.bench.machine().create_stream(0, driver::stream_kind::independent, 0).value;
    clock::stream_clock& s = m.bench.clocks().make(0, handle, clock::life::foreign);
    void* const p = m.take(s, 4096);
    m.busy(s);
    m.complete(s);
    m.bench.clocks().retire(s);
    m.give(p);
    ASSERT_TRUE(m.bench.machine().destroy_stream(0, handle).ok());
    most = std::max(most, m.reserved());
  }
  EXPECT_LE(most, (m.owners.size() + 2) * page);
  m.sound();
}

// Clock objects of ended streams are reused. A block that still named one would name another stream. Its free would
// count as one of that stream, which then could be forgotten although it has a block.
struct reused_clocks : crowd {
  clock::stream_clock& made(clock::life l) {
    return bench.clocks().make(0, bench.machine().create_stream(0, driver::stream_kind::independent, 0).value, l);
  }
  // Ends the stream, then others until its object could be reused, each followed by a borrowed stream with a block.
  void end(clock::stream_clock& s) {
    clock::stream_clock* ends = &s;
    for (std::size_t i = 0; i < clock::clocks::kept_ended + 20; ++i, ends = &made(clock::life::foreign)) {
      complete(*ends);
      bench.clocks().retire(*ends);
      living.push_back(&made(clock::life::borrowed));
      (void)take(*living.back(), 4096);
    }
  }
  void expect_named(void* p, std::uint64_t id) {
    EXPECT_EQ(device().find(p)->home->id(), id);
    give(p);
    for (auto* const s : living)
      EXPECT_FALSE(s->may_be_forgotten()) << "it has a block";
    sound();
  }
  std::vector<clock::stream_clock*> living;
};

TEST(page_sharing, a_live_block_names_its_ended_stream) {
  reused_clocks m;
  clock::stream_clock& s = m.made(clock::life::foreign);
  std::uint64_t const id = s.id();
  void* const p = m.take(s, 4096);
  m.end(s);
  m.expect_named(p, id);
}

// Likewise a slot that was handed over.
TEST(page_sharing, a_slot_handed_over_names_its_ended_stream) {
  reused_clocks m;
  clock::stream_clock& s = m.made(clock::life::foreign);
  std::uint64_t const id = s.id();
  void* const p = m.take(m.owners_stream(), 4096);
  m.device().set_stream(p, s, at);
  m.end(s);
  m.expect_named(p, id);
}

// Memory of a stream is open to a peer in whichever pool it is.
TEST(page_sharing, a_stream_open_to_a_peer_shares_in_no_pool) {
  tests::memory_bench bench({.devices = 2, .memory = 1 << 30, .schedule = simulated::scheduling::stepped, .seed = 1},
                            {.streams_with_pages = 1});
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  clock::stream_clock &first = bench.stream(0), &s = bench.stream(0);
  bench.core.open(1, "test", at);
  (void)device.allocate(first, 4096, 0, at);
  ASSERT_TRUE(device.open_to(&s, 2).ok());
  memory::memory_pool& pool = device.make_pool("other", 0);
  std::uint64_t const entered = memory::thread_caches::enter(pool);
  void* const p = device.allocate(s, 4096, 0, at);
  memory::thread_caches::leave(entered);
  EXPECT_EQ(device.find(p)->pool, &pool);
  EXPECT_TRUE(device.granted(p, 1));
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
}

// Threads of many streams free each other's blocks while some streams get pages of their own.
TEST(page_sharing, threads_share_pages) {
  tests::memory_bench bench({.devices = 1, .memory = std::size_t{1} << 30}, {.streams_with_pages = 2});
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  constexpr int threads = 4, streams = 24, rounds = tests::sanitized ? 300 : 3000;
  std::vector<clock::stream_clock*> all;
  for (int i = 0; i < streams; ++i)
    all.push_back(&bench.stream(0));
  std::array<std::atomic<void*>, 64> exchange{};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      std::uint64_t x = 88172645463325252u + static_cast<std::uint64_t>(t);
      for (int i = 0; i < rounds; ++i) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        void* const p = device.allocate(*all[x % streams], 16 + x / 64 % 8000, 0, at);
        if (x / 4096 % 3 == 0)
          device.record_use(p, *all[x / 128 % streams], at);
        if (void* const old = exchange[x / 1024 % exchange.size()].exchange(p))
          device.deallocate(old, x % 5 ? nullptr : all[x / 256 % streams], at);
      }
    });
  for (auto& t : running)
    t.join();
  for (auto& p : exchange)
    if (void* const old = p.load())
      device.deallocate(old, nullptr, at);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  (void)device.empty_cache();
  EXPECT_EQ(device.reserved(), 0u);
}

}  // namespace
}  // namespace weir
