// Policies of reuse except device waits (reuse_waits_test.cpp): what each does, what it costs, and that its
// option switches it off.
// Threads: one.
#include <gtest/gtest.h>

#include <random>

#include "tests/memory/counted_calls.h"
#include "tests/memory/reuse_machine.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using tests::counted_calls;
using tests::memory_bench;
using machine = tests::reuse_machine;
using waits = options::wait_policy;

TEST(reuse, one_stream_with_blocks_in_place_makes_no_event) {
  machine m({.epsilon = 1});
  counted_calls calls(*m.bench.control);
  std::mt19937_64 random(7);
  std::vector<void*> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 200 && random() % 2) {
      std::size_t const bytes = random() % 4 ? random() % 5000 : random() % (8 << 20);
      live.push_back(m.take(m.a, bytes));
      if (random() % 8 == 0)
        m.busy(m.a);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      m.give(live.back());
      live.pop_back();
    }
  }
  EXPECT_EQ(calls.events(), 0u);
  EXPECT_EQ(calls.host_waits(), 0u);
  EXPECT_EQ(m.stats().fences, 0u);
  calls.forget();
  for (int i = 0; i < 1000; ++i)
    m.give(m.take(m.a, 1 << 20));
  EXPECT_EQ(calls.all(), 0u) << "warm: nothing at all is asked of the driver";
  m.sound();
}

// A returned borrowed block serves its borrower again as a whole, without a poll, only if little of it is
// wasted.
TEST(reuse, a_returned_loan_serves_only_about_its_size) {
  constexpr std::size_t mib = 1 << 20;
  for (auto const& [wanted, whole] : {std::pair{15 * mib, true}, {12 * mib, false}, {9 * mib, false}}) {
    machine m({.epsilon = 1});
    void* const p = m.take(m.a, 16 * mib);
    m.give(p);
    ASSERT_TRUE(m.a.fence().ok() && m.bench.control->run());
    ASSERT_EQ(m.take(m.b, 16 * mib), p) << "lent";
    m.busy(m.b);
    m.give(p);
    ASSERT_TRUE(m.b.fence().ok() && m.bench.control->run());
    counted_calls calls(*m.bench.control);
    EXPECT_EQ(m.take(m.b, wanted), p);
    EXPECT_EQ(calls.events() == 0, whole);
    EXPECT_EQ(static_cast<std::size_t>(m.stats().allocated_bytes.all.current), whole ? 16 * mib : wanted);
    m.sound();
  }
}

// The bytes freed since the newest fence never exceed fence_interval plus one block.
TEST(reuse, fences_come_once_in_fence_interval_bytes) {
  constexpr std::size_t every = 4 << 20;
  machine m({.fence_interval = every});
  void* const room = m.take(m.a, 16 << 20);  // so that no allocation below misses
  (void)m.take(m.b, 100);
  m.give(room);
  std::uint64_t const before = m.stats().fences;
  counted_calls calls(*m.bench.control);
  std::mt19937_64 random(3);
  std::size_t freed = 0, largest = 0;
  for (int i = 0; i < 2000; ++i) {
    std::size_t const bytes = (65 + random() % 1900) * 512;
    m.give(m.take(m.a, bytes));
    freed += bytes, largest = std::max(largest, bytes);
    ASSERT_LE(freed, (m.stats().fences - before + 1) * (every + largest)) << "not fresh, at free " << i;
  }
  std::uint64_t const fences = m.stats().fences - before;
  EXPECT_LE(fences, freed / every) << "not sparse";
  EXPECT_EQ(calls.of({driver::call::record}), fences) << "every event was for that";
  EXPECT_EQ(calls.of({driver::call::query_event, driver::call::wait}), 0u);
  m.sound();
}

// While no other stream wants its memory, a stream's fences come half as often each time. After another
// stream looked, four fences follow closely.
TEST(reuse, fences_are_denser_once_another_stream_looked) {
  machine m({.device_waits = waits::never});
  constexpr std::size_t held = std::size_t{2} << 30, block = 16 << 20;
  void* const room = m.take(m.a, held);
  m.give(room);
  (void)m.take(m.b, 100);  // a miss, which looks at what `a` has
  auto const frees_until_fenced = [&] {
    std::uint64_t const before = m.stats().fences;
    for (std::size_t n = 1; n < 10'000; ++n) {
      m.give(m.take(m.a, block));
      if (m.stats().fences != before)
        return n;
    }
    return std::size_t{0};
  };
  (void)frees_until_fenced();
  for (std::size_t const times : {2, 4, 8, 16, 16})
    EXPECT_EQ(frees_until_fenced(), times * held / block);
  m.busy(m.a);
  (void)m.take(m.b, block);
  (void)frees_until_fenced();
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(frees_until_fenced(), held / 32 / block) << i;
  for (std::size_t const times : {1, 2})
    EXPECT_EQ(frees_until_fenced(), times * held / block);
  m.sound();
}

// Two streams whose blocks never live at once share a page until each has borrowed eight blocks in a row.
// From then on neither looks at the other's memory. If the bound does not allow another page, they go on
// borrowing.
TEST(reuse, a_stream_that_mostly_borrows_gets_its_own_page) {
  memory_bench bench({.devices = 1, .memory = std::size_t{1} << 30}, {.epsilon = 0});  // pages of 2 MiB
  auto& d = static_cast<memory::device_allocator&>(bench.on(0));
  std::size_t const page = d.addresses().page_bytes();
  clock::stream_clock* const streams[] = {&bench.stream(0), &bench.stream(0)};
  auto const most_reserved = [&] { return static_cast<std::size_t>(d.statistics().reserved_bytes.all.peak); };
  auto const in_turn = [&](int times, std::size_t bytes) {
    for (int i = 0; i < times; ++i) {
      for (clock::stream_clock* s : streams) {
        d.deallocate(d.allocate(*s, bytes, 0, at), nullptr, at);
        ASSERT_TRUE(bench.clocks().synchronize(s->now()).ok());
      }
    }
  };
  in_turn(8, 64 << 10);
  EXPECT_EQ(most_reserved(), page);
  in_turn(16, 64 << 10);
  EXPECT_EQ(most_reserved(), 2 * page);
  std::uint64_t const before = d.steps();
  in_turn(20, 64 << 10);
  EXPECT_EQ(d.steps(), before);
  in_turn(40, 64 << 20);
  EXPECT_LE(most_reserved(), (64 << 20) + 3 * page) << "more than the bound for memory that one after the other uses";
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

TEST(reuse, over_wait_counts_where_no_fence_follows_the_use) {
  for (bool const fenced : {false, true}) {
    machine m({.device_waits = waits::when_short}, 4 << 20);
    m.give(m.take(m.a, 3 << 20));
    if (fenced) {
      ASSERT_TRUE(m.a.fence().ok());
    }
    m.busy(m.a);
    ASSERT_NE(m.take(m.b, 3 << 20), nullptr);
    EXPECT_EQ(m.stats().waits_inserted, 1u);
    EXPECT_EQ(m.stats().late_waits, fenced ? 0u : 1u);
    m.sound();
  }
}

TEST(reuse, without_poll_on_miss_nothing_is_asked_early) {
  for (bool const polls : {true, false}) {
    machine m({.epsilon = 1, .poll_on_miss = polls}, 8 << 20);
    void* const p = m.take(m.a, 3 << 20);
    m.device().record_use(p, m.b, at);
    m.busy(m.b);
    m.give(p);
    m.give(m.take(m.b, 2 << 20));
    ASSERT_TRUE(m.a.fence().ok() && m.b.fence().ok());
    ASSERT_TRUE(m.bench.control->run());
    counted_calls calls(*m.bench.control);
    void* const q = m.take(m.a, 3 << 20);
    EXPECT_EQ(q == p, polls);
    EXPECT_EQ(calls.of({driver::call::query_event, driver::call::record}) > 0, polls);
    if (!polls) {
      EXPECT_NE(m.take(m.a, 3 << 20), nullptr);
      EXPECT_GT(calls.of({driver::call::query_event, driver::call::record}), 0u) << "the ladder asks all the same";
    }
    m.sound();
  }
}

// A run of slots is at most half a MiB, whatever its slot size: weir checks the bound for that much more.
TEST(reuse, pending_blocks_are_polled_before_slots_pass_the_bound) {
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{32}, memory::size_classes::largest}) {
    machine m;
    clock::stream_clock& c = m.bench.stream(0);
    void* const kept = m.take(m.a, 2 << 20);
    void* const waits = m.take(m.b, 1 << 20);
    m.device().record_use(waits, c, at);
    m.busy(c);
    m.give(waits);
    ASSERT_TRUE(c.fence().ok());
    counted_calls calls(*m.bench.control);
    void* const p = m.take(m.a, bytes);
    EXPECT_EQ(calls.of({driver::call::query_event}), 1u) << bytes << " B";
    ASSERT_TRUE(m.bench.control->run());
    m.give(p);
    m.give(kept);
    m.sound();
  }
}

TEST(reuse, an_own_complete_block_precedes_anothers) {
  machine m;
  clock::stream_clock& c = m.bench.stream(0);
  void* const own = m.take(m.a, 3 << 20);
  void* const others = m.take(m.b, 3 << 20);
  m.device().record_use(own, c, at);
  m.busy(c);
  m.give(own);
  m.give(others);
  ASSERT_TRUE(c.fence().ok() && m.a.wait(m.b.now()).ok());  // the other stream's block needs no poll
  ASSERT_TRUE(m.bench.control->run());
  EXPECT_EQ(m.take(m.a, 3 << 20), own);
  EXPECT_EQ(m.take(m.a, 3 << 20), others);
  m.sound();
}

// Each heap twice: for a block of about the size, and for any. Then each block once, as one that may be
// complete.
TEST(reuse, each_memory_and_each_piece_of_a_miss_is_a_step) {
  constexpr std::size_t others = 3;
  machine m;
  std::vector<void*> all;
  for (std::size_t i = 0; i < others; ++i) {
    clock::stream_clock& line = m.bench.stream(0);
    all.push_back(m.take(line, 3 << 20));
    m.busy(line);
  }
  for (void* const p : all)
    m.give(p);
  std::uint64_t const before = m.device().steps();
  (void)m.take(m.a, 3 << 20);
  EXPECT_EQ(m.device().steps() - before, 2 * (others + others) + others);
  ASSERT_TRUE(m.bench.control->run());
  m.sound();
}

// The place depends on the calls alone. The device ensures that all earlier uses have ended, whether they are
// complete at the request or not.
TEST(reuse, deterministic_memory_comes_behind_all_its_uses) {
  for (bool const complete : {false, true}) {
    machine m({.deterministic = true});
    void* const first = m.take(m.a, 2 << 20);
    m.device().record_use(first, m.b, at);
    m.busy(m.b);
    clock::stamp const used = m.b.now();
    m.give(first);
    m.batches(m.a, m.b, 2, 2 << 20);
    if (complete) {
      ASSERT_TRUE(m.bench.clocks().synchronize(used).ok());
    }
    EXPECT_EQ(m.take(m.a, 2 << 20), first) << "of three that wait the one given back first";
    EXPECT_TRUE(m.a.covers(used));
    EXPECT_EQ(m.stats().waits_inserted, complete ? 0u : 1u);
    m.sound();
  }
}

// Steps: blocks, streams and polls of the miss.
std::uint64_t steps_of_a_miss(std::size_t pending, bool short_of_memory) {
  constexpr std::size_t block = 64 << 10;
  std::size_t const room = pending * block;
  machine m({.device_limit = short_of_memory ? memory::round_up(room, 2 << 20) + (2 << 20) : 0},
            memory::round_up(room, 2 << 20) + (std::size_t{64} << 20));
  std::vector<void*> all;
  for (std::size_t i = 0; i < pending; ++i)
    all.push_back(m.take(m.a, block));
  auto const gate = m.bench.machine().hold(0, m.b.handle());
  for (std::size_t i = 0; i < pending; ++i) {
    m.device().record_use(all[i], m.b, at);
    m.busy(m.b);
    m.give(all[i]);
    if (i == 3) {
      EXPECT_TRUE(m.b.fence().ok());
    }
  }
  std::uint64_t const before = m.device().steps();
  for (int i = 0; i < 40; ++i)
    (void)m.take(m.a, block);
  std::uint64_t const steps = m.device().steps() - before;
  EXPECT_TRUE(m.bench.machine().open_gate(gate.value).ok());
  EXPECT_TRUE(m.bench.control->run());
  m.sound();
  return steps;
}
TEST(reuse, a_miss_does_not_cost_more_with_waiting_blocks) {
  // WEIR_TEST_MOST_BLOCKS: 100,000 takes long to map.
  std::size_t const most = tests::number_from_environment("WEIR_TEST_MOST_BLOCKS", tests::sanitized ? 3'000 : 10'000);
  for (bool const short_of_memory : {false, true}) {
    std::uint64_t const few = steps_of_a_miss(1'000, short_of_memory), many = steps_of_a_miss(most, short_of_memory);
    EXPECT_LE(many, few + few / 8) << few << " steps with 1,000 blocks";
    EXPECT_LE(few, 40u * 200) << "of 40 misses";
  }
}

// Free blocks of other streams that are not complete.
std::uint64_t steps_past_blocks(std::size_t blocks, bool short_of_memory) {
  constexpr std::size_t block = 64 << 10;
  std::size_t const room = 2 * blocks * block;
  machine m({.device_limit = short_of_memory ? memory::round_up(room, 2 << 20) : 0},
            memory::round_up(room, 2 << 20) + (std::size_t{64} << 20));
  std::vector<void*> all;
  for (std::size_t i = 0; i < 2 * blocks; ++i)
    all.push_back(m.take(m.a, block));
  auto const gate = m.bench.machine().hold(0, m.a.handle());
  for (std::size_t i = 0; i < all.size(); i += 2)
    m.give(all[i]);
  m.a.set_carries_collectives(short_of_memory);  // short memory then ends in a wait without success
  m.b.set_carries_collectives(short_of_memory);
  std::uint64_t const before = m.device().steps();
  for (int i = 0; i < 10; ++i) {
    try {
      (void)m.take(m.b, block);
    } catch (out_of_memory const&) {}
  }
  std::uint64_t const steps = m.device().steps() - before;
  EXPECT_TRUE(m.bench.machine().open_gate(gate.value).ok());
  EXPECT_TRUE(m.bench.control->run());
  m.sound();
  return steps;
}
TEST(reuse, a_miss_does_not_cost_more_with_others_pieces) {
  for (bool const short_of_memory : {false, true}) {
    std::uint64_t const few = steps_past_blocks(500, short_of_memory), many = steps_past_blocks(2'000, short_of_memory);
    EXPECT_LE(many, 2 * few) << few << " steps with 500 pieces";
    EXPECT_LE(many, 10u * 600) << "of 10 misses";
  }
}

// Each of a hundred streams has blocks that wait for another stream, and none is complete.
TEST(reuse, a_miss_looks_at_each_of_a_hundred_streams_once) {
  machine m;
  std::vector<clock::stream_clock*> lines;
  for (int i = 0; i < 100; ++i) {
    lines.push_back(&m.bench.stream(0));
    m.busy(*lines.back());
  }
  for (int k = 0; k < (tests::sanitized ? 2 : 10); ++k) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      void* const p = m.take(*lines[i], 256 << 10);
      m.device().record_use(p, *lines[(i + 1 + static_cast<std::size_t>(k)) % lines.size()], at);
      m.give(p);
    }
  }
  counted_calls calls(*m.bench.control);
  std::uint64_t const before = m.device().steps();
  for (int i = 0; i < 10; ++i)
    (void)m.take(*lines[0], 3 << 20);
  // Before the memory grows, weir polls each awaited stream once more: 100 a miss, plus the blocks.
  EXPECT_LE(calls.of({driver::call::query_event}), 10u * (100 + 100) + 1000) << "ten misses";
  EXPECT_LE(m.device().steps() - before, 10u * (1000 + 2 * 1000));
  ASSERT_TRUE(m.bench.control->run());
  m.sound();
}

}  // namespace
}  // namespace weir
