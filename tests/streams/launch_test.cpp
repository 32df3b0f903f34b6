// Work on streams: its order, what its declared uses keep alive, and what is refused.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/sim.h"

using namespace weir;

namespace {

struct fixture : ::testing::Test {
  weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 28}};
  runtime_guard const chosen{machine};
};
using launches = fixture;

// Nothing moves but by hand.
struct launch_by_hand : ::testing::Test {
  weir::runtime machine{
      simulated{.devices = 2, .memory = size_t{1} << 28, .schedule = simulated::scheduling::stepped, .seed = 1}};
  runtime_guard const chosen{machine};
  simulation sim = simulation::of(machine);
};

template <class F>
std::string refusal(F call) {
  try {
    call();
  } catch (error const& e) {
    EXPECT_FALSE(e.remedy().empty());
    return std::string(e.operation()) + ": " + std::string(e.operands());
  }
  ADD_FAILURE() << "not refused";
  return "";
}

auto const no_gpu = [](CUstream_st*) { FAIL() << "there is no GPU here"; };

TEST_F(launch_by_hand, work_runs_in_stream_order) {
  stream s, other;
  std::vector<int> log;
  for (int i = 0; i < 5; ++i)
    launch(s, {}, no_gpu, [&log, i] { log.push_back(i); });
  launch(other, {}, no_gpu, [&log] { log.push_back(100); });
  EXPECT_TRUE(log.empty());
  EXPECT_TRUE(sim.step(other));
  EXPECT_EQ(log, (std::vector{100}));
  while (sim.step(s)) {}
  EXPECT_EQ(log, (std::vector{100, 0, 1, 2, 3, 4}));
}

// x is made on one stream, read by work on another that has not run yet, and freed.
// What takes its place must not reach the reader.
float read_after_reuse(simulation& sim, bool declared) {
  stream home, reader;
  auto* const x = static_cast<float*>(allocate(home, 4096));
  launch(home, {writes(x)}, no_gpu, [x] { *x = 1; });
  reader.ref().wait(home);
  float seen = 0;
  auto const read = [x, &seen] { seen = *x; };
  if (declared)
    launch(reader, {reads(x)}, no_gpu, read);
  else
    launch(reader, {}, no_gpu, read);
  deallocate(x);
  auto* const y = static_cast<float*>(allocate(home, 4096));
  launch(home, {writes(y)}, no_gpu, [y] { *y = 2; });
  while (sim.step(home)) {}
  sim.run();
  deallocate(y);
  return seen;
}

// On another stream.
TEST_F(launch_by_hand, a_declared_use_keeps_memory_until_complete) {
  EXPECT_EQ(read_after_reuse(sim, true), 1);
  if (machine.get().machine().checker())
    return;  // then what is undeclared is out of reach
  EXPECT_EQ(read_after_reuse(sim, false), 2)
      << "undeclared, the place is taken again at once: this test could not fail";
}

TEST_F(launch_by_hand, a_declared_use_keeps_pinned_until_complete) {
  stream s;
  void* first = nullptr;
  {
    buffer const block = pinned(4096);
    first = block.data();
    launch(s, {reads(block)}, no_gpu, [] {});
  }
  buffer const while_it_waits = pinned(4096);
  EXPECT_NE(while_it_waits.data(), first);
  sim.run();
}

TEST_F(launches, an_interior_address_keeps_its_whole_block) {
  stream home, user;
  auto* const x = static_cast<char*>(allocate(home, 1 << 20));
  auto& devices = machine.get().part<memory::device_memory>();
  launch(user, {reads(x + 1000, 8)}, no_gpu, [] {});
  deallocate(x);
  EXPECT_FALSE(devices.on(0).find(x).has_value());
  device_guard const zero{0};
  synchronize();
}

TEST_F(launches, a_block_of_another_device_needs_access) {
  stream s{device(0)};
  stream_guard const in{s};
  stream other{device(1)};
  void* const x = allocate(other, 4096);
  bool ran = false;
  std::string const why = refusal([&] { launch(s, {updates(x)}, no_gpu, [&ran] { ran = true; }); });
  EXPECT_NE(why.find("updates 0x"), std::string::npos) << why;
  EXPECT_NE(why.find("gpu:0"), std::string::npos) << why;
  EXPECT_NE(why.find("gpu:1"), std::string::npos) << why;
  s.ref().synchronize();
  EXPECT_FALSE(ran);

  ASSERT_TRUE(machine.get().part<memory::device_memory>().on(1).grant(x, 0).ok());
  launch(s, {updates(x)}, no_gpu, [&ran, x] { *static_cast<int*>(x) = 1, ran = true; });
  s.ref().synchronize();
  EXPECT_TRUE(ran);
  deallocate(x);
}

TEST_F(launches, a_freed_block_and_one_that_is_too_small_are_refused) {
  stream s;
  void* const x = allocate(s, 4096);
  std::string const small = refusal([&] { launch(s, {writes(static_cast<char*>(x) + 4000, 97)}, no_gpu, [] {}); });
  EXPECT_NE(small.find("holds 96 B to the end of its block of 4096 B, asked 97 B"), std::string::npos) << small;
  EXPECT_NO_THROW(launch(s, {writes(static_cast<char*>(x) + 4000, 96)}, no_gpu, [] {}));
  deallocate(x);
  std::string const freed = refusal([&] { launch(s, {reads(x)}, no_gpu, [] {}); });
  EXPECT_NE(freed.find("is not allocated"), std::string::npos) << freed;
}

// The allocator rounds blocks up: the bytes behind the last one that was asked for are its own,
// and the next block's lie behind them.
TEST_F(launches, a_use_that_begins_behind_a_block_is_refused) {
  stream s;
  for (size_t const n : {size_t{1000}, size_t{100'001}}) {
    auto* const x = static_cast<char*>(allocate(s, n));
    auto* const locked = static_cast<char*>(pinned(n).release());
    for (auto* const p : {x, locked}) {
      for (size_t const behind : {size_t{0}, size_t{1}, size_t{7}}) {
        std::string const one = refusal([&] { launch(s, {writes(p + n + behind, 1)}, no_gpu, [] {}); });
        EXPECT_NE(one.find("holds 0 B to the end of its block of " + std::to_string(n) + " B, asked 1 B"),
                  std::string::npos)
            << one;
        EXPECT_THROW(launch(s, {writes(p + n + behind, n)}, no_gpu, [] {}), invalid_use);
        std::string const rest = refusal([&] { launch(s, {writes(p + n + behind)}, no_gpu, [] {}); });
        EXPECT_NE(rest.find("asked for the rest of its block"), std::string::npos) << rest;
      }
      EXPECT_THROW(launch(s, {reads(p + 1, ~size_t{0})}, no_gpu, [] {}), invalid_use);
      EXPECT_NO_THROW(launch(s, {writes(p + n - 1, 1), reads(p + n - 1)}, no_gpu, [] {}));
    }
    deallocate(s, x);
    deallocate(s, locked);
  }
  auto* const nothing = allocate(s, 0);
  EXPECT_NO_THROW(launch(s, {writes(nothing)}, no_gpu, [] {}));
  deallocate(nothing);
}

TEST_F(launches, freed_and_foreign_pinned_memory_are_refused) {
  stream s;
  void* const locked = pinned(4096).release();
  deallocate(locked);
  std::string const freed = refusal([&] { launch(s, {reads(locked, 8)}, no_gpu, [] {}); });
  EXPECT_NE(freed.find("is not allocated"), std::string::npos) << freed;
  weir::runtime other(simulated{.devices = 1, .memory = size_t{1} << 28}, {});
  runtime_guard const in(other);
  buffer const theirs(64);
  std::string const why = refusal([&] { launch(s, {reads(theirs.data(), 8)}, no_gpu, [] {}); });
  EXPECT_NE(why.find("another runtime"), std::string::npos) << why;
}

TEST_F(launches, unreachable_pageable_memory_is_refused) {
  stream s;
  std::vector<float> const mine(100);
  std::string const why = refusal([&] { launch(s, {reads(mine)}, no_gpu, [] {}); });
  EXPECT_NE(why.find("pageable"), std::string::npos) << why;
  EXPECT_NO_THROW(launch(s, {}, no_gpu, [] {}));
  s.ref().synchronize();
}

// The program's own memory, locked where it lies: weir knows it as far as the program named it.
struct launch_pinned_range : ::testing::Test {
  weir::runtime machine{
      simulated{.devices = 1, .memory = size_t{1} << 28, .schedule = simulated::scheduling::seeded, .seed = 1},
      {.check_races = true}};
  runtime_guard const chosen{machine};
  alignas(4096) std::array<float, 2048> page{};
  float* const mine = &page[100];
  registered_host_memory lock{std::as_writable_bytes(std::span(mine, 1000))};
};

TEST_F(launch_pinned_range, unknown_memory_has_its_size_only) {
  stream s;
  auto* const before = page.data();  // on a page that is locked
  std::string const why = refusal([&] { launch(s, {reads(before)}, no_gpu, [] {}); });
  EXPECT_NE(why.find("unknown memory of unknown size"), std::string::npos) << why;
  EXPECT_NO_THROW(launch(s, {reads(before, 400)}, no_gpu, [] {}));
  EXPECT_NO_THROW(launch(s, {reads(mine)}, no_gpu, [] {}));
  std::string const over = refusal([&] { launch(s, {reads(mine + 1, 4000)}, no_gpu, [] {}); });
  EXPECT_NE(over.find("holds 3996 B to the end of its block of 4000 B, asked 4000 B"), std::string::npos) << over;
  EXPECT_EQ(find_block(mine + 999)->base, mine);
  EXPECT_EQ(find_block(mine)->kind, memory_kind::pinned);
  EXPECT_FALSE(find_block(before));
  EXPECT_THROW(record_stream(mine, s), invalid_use);
  EXPECT_THROW((void)buffer::adopt(mine), invalid_use);
}

TEST_F(launch_pinned_range, races_name_the_range_and_its_bytes) {
  stream a, b;
  launch(a, {writes(mine)}, no_gpu, [p = mine] { *p = 1; });
  launch(b, {reads(mine + 10)}, no_gpu, [] {});
  auto const found = race_reports();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("bytes 40-3999 of pinned block 1 (4000 B, allocated at launch_test.cpp:"),
            std::string::npos)
      << found[0].text;
}

TEST_F(launch_pinned_range, a_sized_use_covers_its_own_size) {
  stream a, b;
  std::span const all(mine, 1000);
  launch(a, {writes(all.first(500)), reads(all.last(0))}, no_gpu, [] {});
  launch(b, {writes(all.last(500)), reads(std::span(mine, 0))}, no_gpu, [] {});
  EXPECT_TRUE(race_reports().empty());
  launch(b, {reads(all.subspan(499, 1))}, no_gpu, [] {});
  EXPECT_EQ(race_reports().size(), 1u);
}

TEST_F(launches, a_refused_use_leaves_the_others_unmarked) {
  stream home, user;
  void* const x = allocate(home, 4096);
  void* const freed = allocate(home, 8192);
  deallocate(freed);
  EXPECT_THROW(launch(user, {reads(x), reads(freed)}, no_gpu, [] {}), invalid_use);
  deallocate(x);
  void* const again = allocate(home, 4096);
  EXPECT_EQ(again, x) << "no other stream uses it: its own stream may reuse it at once";
  deallocate(again);
}

TEST_F(launches, null_and_empty_uses_are_nothing) {
  stream s;
  buffer const none(0);
  bool ran = false;
  launch(s, {reads(static_cast<void*>(nullptr)), writes(none)}, no_gpu, [&ran] { ran = true; });
  std::vector<memory_use> const many(40, reads(none));
  launch(s, many, no_gpu, [] {});
  s.ref().synchronize();
  EXPECT_TRUE(ran);
}

TEST_F(launches, objects_held_by_work_are_dropped_once) {
  stream s;
  auto const held = std::make_shared<int>(0);
  launch(s, {}, no_gpu, [held] { ++*held; });
  s.ref().synchronize();
  simulation::of(machine).fail_call("enqueue", 1);
  EXPECT_THROW(launch(s, {}, no_gpu, [held] { ++*held; }), driver_error);
  launch(s, {}, no_gpu, [held] { ++*held; });
  s.ref().synchronize();
  synchronize();
  EXPECT_EQ(*held, 2);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(launches, a_lost_device_says_so_and_the_others_go_on) {
  stream s{device(0)}, other{device(1)};
  void* const x = allocate(other, 4096);
  simulation::of(machine).lose_device(0);
  EXPECT_THROW(launch(s, {}, no_gpu, [] {}), device_lost);
  EXPECT_THROW(launch_host(s, [] {}), device_lost);
  std::atomic<bool> ran = false;
  launch(other, {writes(x)}, no_gpu, [&ran] { ran = true; });
  other.ref().synchronize();
  EXPECT_TRUE(ran);
  deallocate(x);
}

TEST(launch_blocking, the_work_is_done_when_launch_returns) {
  weir::options o;
  o.launch_blocking = true;
  weir::runtime machine{simulated{.devices = 1, .memory = size_t{1} << 28}, o};
  runtime_guard const chosen{machine};
  stream s;
  for (int i = 0; i < 50; ++i) {
    int done = 0;  // no lock: the wait orders
    launch(s, {}, no_gpu, [&done] { done = 1; });
    ASSERT_EQ(done, 1);
  }
}

TEST_F(launch_by_hand, host_functions_run_in_stream_order) {
  stream s;
  std::vector<int> log;
  launch(s, {}, no_gpu, [&log] { log.push_back(0); });
  launch_host(s, [&log] { log.push_back(1); });
  launch(s, {}, no_gpu, [&log] { log.push_back(2); });
  EXPECT_TRUE(log.empty());
  sim.run();
  EXPECT_EQ(log, (std::vector{0, 1, 2}));
  EXPECT_THROW(launch_host(s, {}), invalid_use);
}

// Blocks made, filled, read on other streams and freed in any order on a machine that takes every freedom it
// has: each reader sees what was written for it.
TEST(launch_seeded, readers_on_other_streams_see_their_blocks) {
  char const* const given = std::getenv("WEIR_TEST_SEED");
  std::uint64_t const first = given ? std::strtoull(given, nullptr, 0) : std::random_device{}(),
                      rounds = given ? 1 : 40;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    weir::runtime machine{simulated{
        .devices = 2, .memory = size_t{1} << 26, .schedule = simulated::scheduling::seeded, .seed = seed | 1}};
    runtime_guard const chosen{machine};
    std::mt19937_64 random(seed);
    auto const below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    std::vector<stream> streams;
    for (int i = 0; i < 3; ++i)
      streams.emplace_back(device(0));
    struct block {
      int* at;
      size_t n;
      int value;
      size_t home;
    };
    std::vector<block> live;
    std::vector<std::unique_ptr<int>> seen;
    std::vector<int> should;
    int value = 0;
    for (int step = 0; step < 120; ++step) {
      switch (below(3)) {
        case 0: {
          size_t const n = size_t{16} << below(8), home = below(3);
          block const b{static_cast<int*>(allocate(streams[home], n * sizeof(int))), n, ++value, home};
          launch(streams[home], {writes(b.at)}, no_gpu, [b] { std::fill_n(b.at, b.n, b.value); });
          live.push_back(b);
          break;
        }
        case 1: {
          if (live.empty())
            break;
          block const b = live[below(live.size())];
          size_t const user = below(3);
          streams[user].ref().wait(streams[b.home]);
          seen.push_back(std::make_unique<int>(0));
          should.push_back(b.value);
          launch(streams[user], {reads(b.at)}, no_gpu, [b, to = seen.back().get()] {
            *to = std::all_of(b.at, b.at + b.n, [b](int v) { return v == b.value; }) ? b.value : -1;
          });
          break;
        }
        default: {
          if (live.empty())
            break;
          size_t const i = below(live.size());
          deallocate(live[i].at);
          live[i] = live.back();
          live.pop_back();
        }
      }
    }
    synchronize(0);
    for (size_t i = 0; i < seen.size(); ++i)
      ASSERT_EQ(*seen[i], should[i]) << "reader " << i;
    for (block const& b : live)
      deallocate(b.at);
  }
}

struct launch_death : fixture {};

void throw_in(int how) {
  stream s;
  if (how == 0)
    launch(s, {}, no_gpu, [] { throw std::runtime_error("no such word"); });
  if (how == 1)
    launch_host(s, [] { throw std::runtime_error("no such word"); });
  if (how == 2)
    parallel_for(s, 1, {}, [] WEIR_HOST_DEVICE(size_t) { throw std::runtime_error("no such word"); });
  if (how == 3)
    launch(s, {}, no_gpu, [] { throw 7; });
  s.synchronize();
}

TEST_F(launch_death, work_that_throws_is_named_and_ends_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      throw_in(0),
      "weir-105: work .launch at launch_test.cpp:[0-9]+ on stream 1 of gpu:0. threw an exception: no such word");
  EXPECT_DEATH(
      throw_in(1),
      "weir-105: work .launch_host at launch_test.cpp:[0-9]+ on stream 1 of gpu:0. threw an exception: no such word");
  EXPECT_DEATH(
      throw_in(2),
      "weir-105: work .launch at launch_test.cpp:[0-9]+ on stream 1 of gpu:0. threw an exception: no such word");
  EXPECT_DEATH(
      throw_in(3),
      "weir-105: work .launch at launch_test.cpp:[0-9]+ on stream 1 of gpu:0. threw an exception that is not a "
      "std::exception");
}

TEST_F(launches, a_native_launchs_error_code_is_thrown) {
  stream s;
  weir::detail::check_native_launch(s, 0, source_location::current());
  try {
    weir::detail::check_native_launch(s, 98, source_location::current());
    FAIL() << "no driver_error";
  } catch (driver_error const& e) {
    EXPECT_EQ(e.operation(), "parallel_for");
    EXPECT_NE(std::string(e.what()).find("98"), std::string::npos) << e.what();
  }
}

}  // namespace
