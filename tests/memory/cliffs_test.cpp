// Cases where other allocators become slow, or hold many times the memory in use. Each is tested as a count
// of calls, steps or bytes, never of time. docs/lab/peers-defects.md lists them with their reports.
// Threads: one.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/counted_calls.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using driver::call;
using tests::counted_calls;
using tests::memory_bench;

struct cliffs : ::testing::Test {
  explicit cliffs(options o = {}, std::size_t memory = std::size_t{141} << 30)
      : bench({.devices = 2, .memory = memory, .schedule = simulated::scheduling::stepped, .seed = 1}, o) {}
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench.on(0)); }
  void* take(clock::stream_clock& s, std::size_t bytes, std::size_t alignment = 0) {
    return device().allocate(s, bytes, alignment, at);
  }
  void give(void* p, clock::stream_clock* last = nullptr) { device().deallocate(p, last, at); }
  void busy(clock::stream_clock& s) {
    ASSERT_TRUE(bench.machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  std::int64_t reserved() { return device().statistics().reserved_bytes.all.current; }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
};

// rmm#543: the free list is searched from its head on allocation and on free, so that cost grows with its
// length.
std::size_t looks_among(std::size_t blocks) {
  constexpr std::size_t page = 64 << 10;
  memory::region in(memory::address{1} << 40, 8 * blocks * page, page, nullptr);
  std::map<memory::address, memory::handle> handles;
  memory::arena arena;
  arena.add_region(in, memory::state::unmapped);
  std::mt19937_64 random(5);
  std::vector<memory::heap_block*> live;
  for (std::size_t i = 0; i < 2 * blocks; ++i) {
    memory::growth_plan g;
    if (!arena.plan((64 + random() % 190) * memory::bins::unit, memory::bins::unit, memory::arena::zone::blocks, g))
      ADD_FAILURE();
    for (auto const& hole : g.missing) {
      memory::handle const h{driver::memory_handle::none, hole.at, hole.bytes};
      in.set_pages(h, &(handles[hole.at] = h));
    }
    live.push_back(arena.commit(g));
  }
  for (std::size_t i = 0; i < live.size(); i += 2)
    arena.give(*live[i], 1 + i);
  EXPECT_GE(arena.free_blocks(), blocks / 2);
  std::size_t looks = 0;
  for (int i = 0; i < 200; ++i) {
    memory::heap_block* const p = arena.take_if((64 + random() % 150) * memory::bins::unit, memory::bins::unit,
                                                [&](memory::heap_block const&) { return ++looks, true; });
    if (p)
      arena.give(*p, 1);
  }
  return looks;
}
// Compared with a thousand.
TEST(cliffs_of_lists, ten_thousand_free_blocks_cost_no_more_looks) {
  std::size_t const few = looks_among(1'000), many = looks_among(10'000);
  EXPECT_LE(many, 200u * 33) << "33 looks an allocation";
  EXPECT_LE(many, 4 * few + 200);
}

// Runs are a page long if a size has many slabs. If only shorter runs are free, they serve before memory
// grows.
TEST_F(cliffs, short_runs_serve_where_no_long_run_is_free) {
  if (tests::sanitized)
    GTEST_SKIP() << "half a million blocks";
  constexpr std::size_t one = 528, other = 1152, usual = memory::slabs::usual_run_bytes;
  std::vector<void*> others, kept;
  for (int run = 0; run < 100; ++run) {  // of both sizes in turn, so that they interleave
    for (std::size_t n = 0; n < usual; n += one)
      kept.push_back(take(a, one));
    for (std::size_t n = 0; n < usual; n += other)
      others.push_back(take(a, other));
  }
  for (std::size_t n = 0; n < 160 * usual; n += one)
    kept.push_back(take(a, one));
  for (void* const p : others)
    give(p);
  std::int64_t const before = reserved();
  std::size_t given = 0;
  for (; reserved() == before && given < 100 * usual; given += one)
    kept.push_back(take(a, one));
  EXPECT_GE(given, 80 * usual) << "of " << others.size() * other << " B that were given back";
  sound();
  for (void* const p : kept)
    give(p);
}

// A driver keeps 5.5 KB of host memory for each handle, whatever its size. The handles are of 2 MiB pages, as
// on GPUs.
TEST(cliff_handles, each_run_of_a_large_class_is_one_handle) {
  if (tests::sanitized)
    GTEST_SKIP() << "a million blocks";
  options o;
  o.epsilon = 0.027;  // with less, what slots and runs leave unused passes the bound
  memory_bench bench({.devices = 1, .memory = std::size_t{8} << 30}, o);
  clock::stream_clock& a = bench.stream(0);
  memory::allocator& of = bench.on(0);
  constexpr std::size_t one = 528, many = 100 << 20, all_bytes = 600 << 20;
  std::vector<void*> all;
  auto const take = [&] { all.push_back(of.allocate(a, one, 0, at)); };
  while (all.size() * one < many)
    take();
  counted_calls calls(*bench.control);
  std::uint64_t made = 0, more = 0, at_once = 0;
  for (; all.size() * one < all_bytes; made = calls.of({call::create})) {
    take();
    std::uint64_t const now = calls.of({call::create}) - made;
    more += now > 0, at_once = std::max(at_once, now);
  }
  EXPECT_EQ(at_once, 1u);
  EXPECT_LE(more, 130u) << "runs of 2 MiB would be 250";
  EXPECT_EQ(of.validate(), std::vector<std::string>{});
  for (void* const p : all)
    of.deallocate(p, nullptr, at);
}

// A device that once had to pass its bound makes smaller handles from then on, until the cache is emptied.
TEST(cliff_handles, an_emptied_cache_moves_as_little_as_none) {
  auto const calls_of_large_blocks = [](bool after_others) {
    memory_bench bench({.devices = 1, .memory = std::size_t{64} << 30});
    clock::stream_clock& a = bench.stream(0);
    memory::allocator& of = bench.on(0);
    counted_calls calls(*bench.control);
    std::mt19937_64 random(7);
    auto const replace = [&](std::size_t live, std::size_t least, std::size_t most, int times) {
      std::vector<void*> all(live);
      double const doublings = std::log2(static_cast<double>(most) / static_cast<double>(least));
      for (int i = 0; i < times; ++i) {
        void*& one = all[random() % live];
        if (one)
          of.deallocate(one, nullptr, at);
        one = of.allocate(a,
                          static_cast<std::size_t>(static_cast<double>(least) *
                                                   std::exp2(doublings * static_cast<double>(random() % 1000) / 1000)),
                          0, at);
      }
      for (void* const p : all)
        of.deallocate(p, nullptr, at);
      of.empty_cache();
    };
    if (after_others)
      replace(1000, 32 << 10, 1 << 20, 20'000);
    random.seed(8);
    calls.forget();
    replace(200, 64 << 10, 64 << 20, 20'000);
    EXPECT_EQ(of.validate(), std::vector<std::string>{});
    return calls.of({call::create, call::map});
  };
  std::uint64_t const fresh = calls_of_large_blocks(false), after = calls_of_large_blocks(true);
  EXPECT_LE(after, fresh + fresh / 10);
}

// Long runs need room: none is made that passes the bound, and a limit is filled to its end with shorter
// runs.
struct small_room : cliffs {
  small_room() : cliffs({.device_limit = 420 << 20, .epsilon = 0.01}) {}
};
TEST_F(small_room, runs_grow_neither_past_the_bound_nor_at_a_limit) {
  if (tests::sanitized)
    GTEST_SKIP() << "a million blocks";
  constexpr std::size_t one = 528;
  std::vector<void*> all;
  std::int64_t seen = 0, worst = 0;
  try {
    while (true) {
      all.push_back(take(a, one));
      if (std::int64_t const now = reserved(); now > std::exchange(seen, now))
        worst = std::max(worst, now - static_cast<std::int64_t>(all.size() * one * 101 / 100));
    }
  } catch (out_of_memory const&) {}
  EXPECT_LE(worst, 2 << 20) << "bytes beyond the first term";
  EXPECT_GE(all.size() * one, (std::size_t{420} << 20) / 1000 * 995);
  sound();
  for (void* const p : all)
    give(p);
}

// pytorch orion#5, onnxruntime#12920, rmm#2039: another stream gets cached memory of a stream never, or only
// after a wait for the whole device. Here it needs neither a wait nor new memory.
TEST_F(cliffs, an_idle_streams_memory_serves_another_at_once) {
  std::vector<void*> all;
  for (int i = 0; i < 16; ++i)
    all.push_back(take(a, 16 << 20)), busy(a);
  (void)take(b, 100);
  for (void* p : all)
    give(p);
  ASSERT_TRUE(bench.control->run());  // a is idle from here on
  std::int64_t const before = reserved();
  counted_calls calls(*bench.control);
  for (int i = 0; i < 15; ++i)
    EXPECT_NE(take(b, 16 << 20), nullptr);
  EXPECT_EQ(reserved(), before);
  EXPECT_EQ(calls.host_waits(), 0u);
  EXPECT_EQ(calls.of({call::create, call::unmap}), 0u);
  sound();
}
// Only frees that no fence covers yet are found late: less than one fence interval.
TEST_F(cliffs, at_most_one_fences_worth_is_found_late) {
  std::vector<void*> all;
  for (int i = 0; i < 100; ++i)
    all.push_back(take(a, 1 << 20)), busy(a);
  (void)take(b, 100);
  for (void* p : all)
    give(p);
  ASSERT_TRUE(bench.control->run());
  std::int64_t const before = reserved();
  for (int i = 0; i < 90; ++i) {
    (void)take(b, 1 << 20);
    ASSERT_TRUE(bench.control->run());  // an event on an idle stream is complete at once
  }
  EXPECT_LE(reserved() - before, 16 << 20);
  sound();
}

// Memory behind record_stream waits until the host polls, and the host of this pipeline never does.
TEST_F(cliffs, a_pipeline_of_three_streams_holds_few_batches) {
  clock::stream_clock& c = bench.stream(0);
  constexpr std::size_t batch = 16 << 20;
  counted_calls calls(*bench.control);
  for (int i = 0; i < 60; ++i) {
    void* const in = take(a, batch);
    busy(a);
    device().record_use(in, b, at);
    ASSERT_TRUE(b.wait(a.now()).ok());
    void* const out = take(b, batch);
    busy(b);
    give(in);
    device().record_use(out, c, at);
    ASSERT_TRUE(c.wait(b.now()).ok());
    busy(c);
    give(out);
  }
  EXPECT_LE(device().statistics().reserved_bytes.all.peak, static_cast<std::int64_t>(8 * batch))
      << "512 MiB where a batch is 64";
  EXPECT_EQ(calls.host_waits(), 0u);
  EXPECT_EQ(device().statistics().late_waits, 0u);
  sound();
}

// cudaMallocAsync with a release threshold of 0 returns memory at each synchronize and allocates it again.
TEST_F(cliffs, memory_stays_when_the_host_waits_for_the_device) {
  for (int round = 0; round < 2; ++round) {
    counted_calls calls(*bench.control);
    for (int i = 0; i < 50; ++i) {
      void *const p = take(a, 8 << 20), *const q = take(a, 100'000);
      busy(a);
      give(p), give(q);
      ASSERT_TRUE(a.synchronize().ok());
    }
    if (round) {
      EXPECT_EQ(calls.of({call::create, call::map, call::unmap, call::release}), 0u);
    }
  }
  sound();
}

// rmm#1995, #425: each free records an event, which is a third to a half of its cost. Here: ten thousand
// frees beside another stream.
TEST_F(cliffs, frees_record_one_event_for_each_16_mib) {
  (void)take(b, 100);
  counted_calls calls(*bench.control);
  for (int i = 0; i < 10'000; ++i)
    give(take(a, 64 << 10));
  EXPECT_LE(calls.of({call::record}), (10'000u * 64 >> 10) / 16 + 1);
  EXPECT_EQ(calls.of({call::query_event, call::wait}), 0u);
  sound();
}

// pytorch's process_events, Paddle#40718: every allocation walks all outstanding events.
TEST_F(cliffs, ten_thousand_waiting_blocks_cost_a_miss_one_question) {
  std::vector<void*> all;
  for (int i = 0; i < 10'000; ++i)
    all.push_back(take(a, 40'000));
  for (void* p : all) {
    device().record_use(p, b, at);
    busy(b);
    give(p);
  }
  counted_calls calls(*bench.control);
  (void)take(a, 8 << 20);
  EXPECT_LE(calls.of({call::query_event, call::record, call::wait, call::query_stream}), 4u);
  sound();
}

// One that is registered is asked before, at each allocation: its captures begin elsewhere.
TEST_F(cliffs, a_miss_asks_once_whether_its_stream_is_captured) {
  auto const handle = bench.machine().create_stream(0, driver::stream_kind::independent, 0).value;
  clock::stream_clock& registered = bench.clocks().make(0, handle, clock::life::foreign);
  for (clock::stream_clock* const s : {&a, &registered}) {
    void* const before = take(*s, 4 << 20);
    void* grown = nullptr;
    {
      counted_calls const calls(*bench.control);
      grown = take(*s, 4 << 20);
      EXPECT_GT(calls.of({call::create}), 0u);
      EXPECT_EQ(calls.of({call::capturing}), 1u);
    }
    give(before), give(grown);
  }
  sound();
}

// Megatron-LM#6885 and pytorch (num_sync_all_streams): near the limit every miss waits for all streams and
// releases the whole cache.
struct cliffs_short : cliffs {
  cliffs_short() : cliffs({}, 64 << 20) {}
};
// Nor does a step release memory that is not needed.
TEST_F(cliffs_short, no_step_of_the_slow_path_waits_for_the_device) {
  std::vector<void*> all;
  for (int i = 0; i < 30; ++i)
    all.push_back(take(a, 2 << 20)), busy(a);
  for (void* p : all)
    give(p);
  (void)take(b, 2 << 20);
  counted_calls calls(*bench.control);
  ASSERT_NE(take(b, 12 << 20), nullptr);
  EXPECT_EQ(calls.of({call::synchronize_device}), 0u);
  EXPECT_LE(calls.of({call::unmap}), (12u << 20) / page) << "12 MiB are no 60";
  sound();
}

// PyTorch's steps of 512 B, 2 MiB and 20 MiB: 4 Mi blocks of 516 B take 1.98 times the requested bytes, and a
// block of 1.1 MiB takes 20 MiB. Here: small blocks and a first large one.
TEST_F(cliffs, a_mixed_start_takes_little_more_than_was_asked) {
  for (int i = 0; i < 20'000; ++i)
    (void)take(a, 516, 16);
  EXPECT_LE(static_cast<double>(reserved()), 1.25 * 20'000 * 516);
  std::int64_t const before = reserved();
  (void)take(b, 1'100'000);
  EXPECT_LE(reserved() - before, 2 << 20);
  sound();
}

// xla#19431, "registration grows with the square of the GPUs": each allocation is opened to every peer.
TEST_F(cliffs, memory_is_granted_to_no_device_that_does_not_ask) {
  counted_calls calls(*bench.control);
  for (int i = 0; i < 20; ++i)
    (void)take(a, 16 << 20);
  EXPECT_EQ(calls.of({call::grant}), calls.of({call::map})) << "one a handle, its own device's";
  sound();
}

// An equal share of addresses for each stream runs out after some hundred streams.
TEST(cliff_addresses, a_thousand_streams_leave_half_usable) {
  memory_bench bench({.devices = 1, .memory = 256 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
  std::vector<void*> all;
  for (int i = 0; i < 1000; ++i)
    all.push_back(bench.on(0).allocate(bench.stream(0), 2 * page, 0, at));
  all.push_back(bench.on(0).allocate(bench.stream(0), 120 << 20, 0, at));
  for (void* const p : all)
    bench.on(0).deallocate(p, nullptr, at);
}

TEST(cliff_addresses, a_refusal_for_want_of_them_says_so) {
  memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                     options{.address_space = 64 << 20});
  std::vector<void*> all;
  std::string why;
  for (int i = 0; i < 4; ++i)
    all.push_back(bench.on(0).allocate(bench.stream(0), page, 0, at));
  try {
    all.push_back(bench.on(0).allocate(bench.stream(0), std::size_t{48} << 20, 0, at));
  } catch (out_of_memory const& e) {
    why = e.report().text();
  }
  EXPECT_NE(why.find("no free range of that length"), std::string::npos) << why;
  for (void* const p : all)
    bench.on(0).deallocate(p, nullptr, at);
}

}  // namespace
}  // namespace weir
