// The recovery steps of an allocation that finds no memory: what each finds, and what is said when none does.
// Threads: each test's own; work runs on the machine's threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/memory_bench.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

std::uint64_t recoveries(std::string_view step) {
  for (std::size_t i = 0; i < recovery_steps.size(); ++i) {
    if (recovery_steps[i] == step)
      return memory_stats().recovered_by[i];
  }
  ADD_FAILURE() << "no step is called " << step;
  return 0;
}

struct ladder : ::testing::Test {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.device_limit = 6_MiB}};
  runtime_guard in{own};
  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  void sound() { EXPECT_EQ(device().validate(), std::vector<std::string>{}); }
};

// Two pages have a block of the other stream each, and a third page went back to the driver. The only place
// with room for 4 MiB lies between those blocks.
TEST_F(ladder, maps_pages_between_blocks_of_another_stream) {
  stream const other, mine;
  void *const first = allocate(other.ref(), 1_MiB), *const middle = allocate(other.ref(), 4_MiB),
              *const last = allocate(other.ref(), 1_MiB);
  deallocate(middle);
  EXPECT_EQ(empty_cache(), 2_MiB);
  void* p = nullptr;
  ASSERT_NO_THROW(p = allocate(mine.ref(), 4_MiB));
  EXPECT_EQ(p, middle);
  EXPECT_EQ(find_block(p)->home, mine.ref());
  EXPECT_EQ(recoveries("room between blocks of any stream"), 1u);
  sound();
  for (void* block : {first, p, last})
    deallocate(block);
  sound();
}

memory_report refusal_of(stream_ref on, size_t bytes) {
  try {
    void* const p = allocate(on, bytes);
    ADD_FAILURE() << bytes << " B were had";
    deallocate(p);
    return {};
  } catch (out_of_memory const& e) {
    return e.report();
  }
}

struct history_of_lines {
  history_of_lines() { record_memory_history(); }
  ~history_of_lines() { stop_memory_history(); }
};

TEST_F(ladder, names_a_request_above_device_or_limit) {
  EXPECT_EQ(refusal_of(current_stream(), 65_MiB).cause, memory_cause::too_large);
  EXPECT_EQ(refusal_of(current_stream(), 7_MiB).cause, memory_cause::limit);
  set_memory_limit(0);
  buffer const all(60_MiB);
  EXPECT_EQ(refusal_of(current_stream(), 65_MiB).cause, memory_cause::too_large);
}

TEST_F(ladder, names_a_limit_and_the_lines_that_hold_its_bytes) {
  history_of_lines const recorded;
  buffer const small(1_MiB);
  buffer const large(4_MiB);
  int const line = __LINE__ - 1;
  auto const why = refusal_of(current_stream(), 2_MiB);
  EXPECT_EQ(why.cause, memory_cause::limit) << why.text();
  ASSERT_EQ(why.holders.size(), 2u);
  EXPECT_EQ(why.holders.front().where.line(), static_cast<unsigned>(line));
  EXPECT_EQ(why.holders.front().bytes, 4_MiB);
  EXPECT_NE(why.text().find("4.00 MiB in live blocks of "), std::string::npos) << why.text();
}

// Each of three pages has 64 KiB in use.
TEST_F(ladder, names_survivors_and_the_line_that_took_them) {
  history_of_lines const recorded;
  std::vector<buffer> survivors, others;
  int line = 0;
  for (int page = 0; page < 3; ++page) {
    others.push_back(buffer(1_MiB - 64_KiB));
    survivors.push_back(buffer(64_KiB)), line = __LINE__;
    others.push_back(buffer(1_MiB));
  }
  others.clear();
  auto const why = refusal_of(current_stream(), 3_MiB);
  EXPECT_EQ(why.cause, memory_cause::survivors) << why.text();
  ASSERT_EQ(why.holders.size(), 1u);
  EXPECT_EQ(why.holders.front().where.line(), static_cast<unsigned>(line));
  EXPECT_EQ(why.holders.front().bytes, 6_MiB - 192_KiB);
  EXPECT_NE(why.text().find("kept in place by blocks of "), std::string::npos) << why.text();
  sound();
  survivors.clear();
  buffer const now(6_MiB);
}

TEST_F(ladder, names_no_line_without_a_history) {
  buffer const held(5_MiB);
  EXPECT_TRUE(refusal_of(current_stream(), 2_MiB).holders.empty());
}

TEST_F(ladder, names_what_the_program_holds_and_what_others_hold) {
  set_memory_limit(0);
  {
    buffer const held(60_MiB);
    EXPECT_EQ(refusal_of(current_stream(), 8_MiB).cause, memory_cause::in_use);
  }
  empty_cache();
  simulation::of(own).consume_memory(gpu, 40_MiB);
  auto const why = refusal_of(current_stream(), 32_MiB);
  EXPECT_EQ(why.cause, memory_cause::outside) << why.text();
  EXPECT_NE(why.text().find("Other processes or libraries hold"), std::string::npos) << why.text();
  buffer const rest(24_MiB);
}

TEST_F(ladder, names_a_driver_that_refuses_what_is_there) {
  auto machine = simulation::of(own);
  for (std::uint64_t k = 1; k <= 64; ++k)
    machine.fail_call("create", k);
  auto const why = refusal_of(current_stream(), 2_MiB);
  EXPECT_EQ(why.cause, memory_cause::driver) << why.text();
  EXPECT_NE(why.text().find("The driver refused"), std::string::npos) << why.text();
  machine.clear_failures();
  buffer const after(6_MiB);
  sound();
}

// A place can lack more than it seems, when a graph holds a block there. Then the next one is tried.
TEST_F(ladder, a_place_that_a_graph_holds_hides_no_other) {
  set_memory_limit(12_MiB);
  stream const held, open, mine;
  std::vector<void*> walls;
  auto const with_a_hole = [&](stream_ref s) {
    walls.push_back(allocate(s, 1_MiB));
    void* const hole = allocate(s, 4_MiB);
    walls.push_back(allocate(s, 1_MiB));
    return hole;
  };
  void* const kept = with_a_hole(held);
  {
    graph const g = graph::capture(held, [&] { deallocate(kept); });
    void* const hole = with_a_hole(open);
    deallocate(hole);
    empty_cache();
    void* p = nullptr;
    EXPECT_NO_THROW(p = allocate(mine, 4_MiB));
    EXPECT_EQ(p, hole);
    deallocate(p);
  }
  for (void* const w : walls)
    deallocate(w);
  sound();
}

// Where pages are short, no place is tried that lacks as many.
TEST_F(ladder, a_refusal_beside_many_streams_costs_no_more_calls) {
  set_memory_limit(0);
  auto machine = simulation::of(own);
  std::vector<stream> others;
  std::vector<void*> walls;
  auto const add_streams_with_room = [&](std::size_t n) {
    while (others.size() < n) {
      stream_ref const s = others.emplace_back();
      walls.push_back(allocate(s, 1_MiB));
      void* const middle = allocate(s, 4_MiB);
      walls.push_back(allocate(s, 1_MiB));
      deallocate(middle);
    }
    empty_cache();
  };
  auto const creates_of_a_refusal = [&] {
    constexpr std::uint64_t most = 2000;
    std::vector<std::uint64_t> failures;
    for (std::uint64_t k = 1; k <= most; ++k)
      failures.push_back(machine.fail_call("create", k));
    (void)refusal_of(current_stream(), 4_MiB);
    return std::ranges::count_if(failures, [&](std::uint64_t n) { return !machine.cancel_failure(n); });
  };
  add_streams_with_room(1);
  auto const beside_one = creates_of_a_refusal();
  add_streams_with_room(10);
  EXPECT_LE(creates_of_a_refusal(), beside_one + 4);
  for (void* const w : walls)
    deallocate(w);
  sound();
}

// Each thread frees what it holds, in no order, and asks for large blocks. No driver call fails, so a refusal
// has another cause, though what a thread frees may come after another has searched.
TEST(ladder_threads, a_free_meanwhile_is_no_refusal_by_the_driver) {
  for (std::uint64_t const seed : tests::seeds("ladder_threads", tests::sanitized ? 15 : 60)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    simulated const machine{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = seed};
    runtime own(machine, options{.device_limit = 2_MiB});
    runtime_guard const in(own);
    auto controls = simulation::of(own);
    std::vector<stream> streams(2);
    auto const play = [&](stream_ref mine, std::uint64_t chosen) {
      std::mt19937_64 draw(chosen);
      std::vector<void*> live;
      for (int i = 0; i < 24; ++i) {
        if (draw() % 2 && !live.empty()) {
          std::swap(live[draw() % live.size()], live.back());
          deallocate(live.back()), live.pop_back();
          continue;
        }
        try {
          live.push_back(allocate(mine, draw() % 4   ? 64_KiB + draw() % 512_KiB
                                        : draw() % 3 ? 1536_KiB
                                                     : draw() % 1000));
        } catch (out_of_memory const& e) {
          EXPECT_NE(e.report().cause, memory_cause::driver) << e.report().text();
        }
      }
      for (void* p : live)
        deallocate(p);
    };
    for (stream& s : streams) {
      controls.spawn("of " + std::to_string(s.ref().id()), [&, chosen = random()] { play(s.ref(), chosen); });
    }
    controls.join();
    EXPECT_EQ(own.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }
}

// Others take memory meanwhile, too.
TEST(driver_reserve, stays_free_however_the_device_is_filled) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.driver_reserve = 10_MiB}};
  runtime_guard const in(own);
  auto machine = simulation::of(own);
  std::vector<buffer> all;
  auto const fill = [&](size_t bytes) {
    for (;;) {
      try {
        all.push_back(buffer(bytes));
      } catch (out_of_memory const& e) {
        EXPECT_EQ(e.report().driver_reserve, 10_MiB);
        EXPECT_NE(e.report().text().find("for the driver  10.00 MiB"), std::string::npos) << e.report().text();
        break;
      }
      EXPECT_GE(mem_get_info().free, 10_MiB);
    }
  };
  fill(3_MiB);
  EXPECT_LT(memory_headroom().largest, 3_MiB);
  fill(40_KiB);
  EXPECT_EQ(mem_get_info().free, 10_MiB);
  all.resize(all.size() / 2);
  empty_cache();
  machine.consume_memory(gpu, (mem_get_info().free - 10_MiB) / 2_MiB * 1_MiB);
  fill(1_MiB);
  EXPECT_GE(mem_get_info().free, 10_MiB);
  EXPECT_LT(mem_get_info().free, 12_MiB);
}

// It is no part of what a limit of weir's allows.
TEST(driver_reserve, takes_nothing_from_a_limit) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.device_limit = 54_MiB, .driver_reserve = 10_MiB}};
  runtime_guard const in(own);
  EXPECT_EQ(memory_headroom().largest, 54_MiB);
  buffer const all(54_MiB);
}

// A stream that carries collectives is waited for only for a while, because its ranks may wait for this thread.
TEST(ladder_stepped, names_the_stream_that_uses_freed_memory) {
  tests::memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                            options{.device_limit = 4 << 20, .device_waits = options::wait_policy::never});
  constexpr source_location at{"a test", "a test", 1};
  clock::stream_clock &mine = bench.stream(0), &busy = bench.stream(0);
  busy.set_carries_collectives(true);
  auto& device = bench.on(0);
  void* const p = device.allocate(mine, 3 << 20, 0, at);
  ASSERT_TRUE(busy.wait(mine.now()).ok());
  auto const gate = bench.machine().hold(0, busy.handle());
  ASSERT_TRUE(gate.ok());
  device.deallocate(p, &busy, at);
  memory_report why;
  try {
    device.allocate(mine, 3 << 20, 0, at);
    ADD_FAILURE() << "its memory is in use";
  } catch (out_of_memory const& e) {
    why = e.report();
  }
  EXPECT_EQ(why.cause, memory_cause::pending) << why.text();
  ASSERT_FALSE(why.waits_for.empty());
  EXPECT_EQ(why.waits_for.front().stream, busy.id());
  EXPECT_EQ(why.waits_for.front().bytes, 3_MiB);
  EXPECT_NE(why.text().find("Stream " + std::to_string(busy.id()) + " still uses 3.00 MiB"), std::string::npos)
      << why.text();
  ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
  EXPECT_TRUE(bench.control->run());
  void* const again = device.allocate(mine, 3 << 20, 0, at);
  device.deallocate(again, nullptr, at);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
