// Collectives of a simulated machine, where one thread arranges the order of the ranks: waits, marks, refusals.
// Threads: one, and in one case a second that waits.
#include "tests/peer/ranks.h"

#include <future>

#include "peer/collective/group.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "streams/stream/context.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

struct sim_collective : sim_ranks {
  sim_collective() : sim_ranks(2) {}
  stamp add_up(int rank, buffer const& b) {
    return ranks_[static_cast<std::size_t>(rank)].all_reduce({b.data(), 3, int32});
  }
};

// Its stamp waits for the last rank.
TEST_F(sim_collective, the_first_rank_returns_at_once) {
  buffer const a = on(0, 1), b = on(1, 10);
  stamp const first = add_up(0, a);
  EXPECT_FALSE(first.query());
  stamp const last = add_up(1, b);
  first.synchronize();
  last.synchronize();
  EXPECT_EQ(read(0, a), encode(int32, {11, 13, 15}));
  EXPECT_EQ(read(1, b), encode(int32, {11, 13, 15}));
}

TEST_F(sim_collective, a_waiting_rank_holds_its_own_stream_only) {
  buffer const a = on(0, 1), b = on(1, 10);
  device_guard const at(0);
  stream side;
  {
    stream_guard const in(side);
    add_up(0, a);
  }
  buffer const other = on(0, 5);  // other work and copies of the same device go on
  EXPECT_EQ(read(0, other), encode(int32, {5, 6, 7}));
  EXPECT_FALSE(side.ref().query());
  add_up(1, b);
  side.ref().synchronize();
  EXPECT_EQ(read(0, a), encode(int32, {11, 13, 15}));
}

// Blocks in a waiting thread's cache serve other streams, also one that is not ordered after its stream,
// because they were freed before the collective.
TEST(collective_memory, a_waiting_rank_strands_no_cached_block) {
  enum class waits_in { barrier, sum, sum_right_after };  // the last: weir has not polled the freed memory
  for (waits_in const where : {waits_in::barrier, waits_in::sum, waits_in::sum_right_after}) {
    bool const in_barrier = where == waits_in::barrier;
    runtime machine(simulated{.devices = 2, .memory = 16_MiB});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(2));
    stream waits, other;
    buffer a, b;
    {
      stream_guard const on(other);
      a = to_device(encode(int32, {1}));
    }
    {
      device_guard const at(1);
      b = to_device(encode(int32, {1}));
    }
    std::promise<void> parked;
    std::thread rank([&] {
      runtime_guard const here_too(machine);
      stream_guard const on(waits);
      std::vector<void*> all;
      for (int i = 0; i < 200; ++i)
        all.push_back(allocate(waits.ref(), 4096));
      for (void* const p : all)
        deallocate(p);
      if (where != waits_in::sum_right_after)
        waits.synchronize();
      stamp const sum = in_barrier ? stamp{} : ranks[0].all_reduce({a.data(), 1, int32});
      parked.set_value();
      in_barrier ? ranks[0].barrier() : sum.synchronize();
    });
    parked.get_future().wait();
    EXPECT_NO_THROW(deallocate(allocate(other.ref(), 14_MiB))) << static_cast<int>(where);
    if (in_barrier) {
      ranks[1].barrier();
    } else {
      device_guard const at(1);
      ranks[1].all_reduce({b.data(), 1, int32}).synchronize();
    }
    rank.join();
    a = {}, b = {};
  }
}

// The error names the request of each rank.
TEST_F(sim_collective, a_rank_that_differs_is_told_and_may_retry) {
  buffer const a = on(0, 1), b = on(1, 10);
  add_up(0, a);
  auto const text_of = [&](auto ask) { return refusal<invalid_use>(ask); };
  std::string const shorter = text_of([&] { ranks_[1].all_reduce({b.data(), 2, int32}); });
  EXPECT_NE(shorter.find("rank 1 calls all_reduce of 2 int32 (sum) where rank 0 called all_reduce of 3 int32 (sum)"),
            std::string::npos)
      << shorter;
  EXPECT_NE(shorter.find("collective_sim_test.cpp"), std::string::npos) << shorter;
  EXPECT_NE(text_of([&] { ranks_[1].all_reduce({b.data(), 3, float32}); }).find("float32"), std::string::npos);
  EXPECT_NE(text_of([&] {
              ranks_[1].all_reduce({b.data(), 3, int32}, reduce_op::max);
            }).find("(max)"),
            std::string::npos);
  EXPECT_NE(text_of([&] { ranks_[1].broadcast({b.data(), 3, int32}, 0); }).find("broadcast"), std::string::npos);
  add_up(1, b);
  EXPECT_EQ(read(0, a), encode(int32, {11, 13, 15}));
  EXPECT_EQ(read(1, b), encode(int32, {11, 13, 15}));
}

// The block was used on another stream than its home.
TEST_F(sim_collective, a_marked_block_waits_for_the_collective) {
  device_guard const at(0);
  stream side;
  buffer const b = on(1, 10);
  void* freed = nullptr;
  {
    buffer const a = on(0, 1);
    freed = a.data();
    stream_guard const in(side);
    add_up(0, a);
  }
  std::vector<buffer> taken;
  for (int i = 0; i < 100; ++i) {
    taken.emplace_back(3 * sizeof(std::int32_t));
    EXPECT_NE(taken.back().data(), freed);
  }
  add_up(1, b);
  EXPECT_EQ(read(1, b), encode(int32, {11, 13, 15}));
}

TEST_F(sim_collective, a_stream_that_carries_one_is_known_to) {
  buffer const a = on(0, 1), b = on(1, 10);
  device_guard const at(0);
  stream const side, plain;
  {
    stream_guard const in(side);
    add_up(0, a);
  }
  add_up(1, b);
  EXPECT_TRUE(streams::clock_of(side).carries_collectives());
  EXPECT_FALSE(streams::clock_of(plain).carries_collectives());
}

// The error names the rank that aborted.
TEST_F(sim_collective, abort_releases_waits_and_is_named_later) {
  buffer const a = on(0, 1), b = on(1, 10);
  stamp const waits = add_up(0, a);
  auto stands = std::async(std::launch::async, [&] { return refusal<driver_error>([&] { ranks_[0].barrier(); }); });
  auto sleeps = std::async(std::launch::async, [&] { waits.synchronize(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks_[1].abort();
  sleeps.get();
  EXPECT_NE(stands.get().find("rank 1 aborted"), std::string::npos);
  for (int rank : {0, 1}) {
    std::string const text = refusal<driver_error>([&] { add_up(rank, rank ? b : a); });
    EXPECT_NE(text.find("rank 1 aborted"), std::string::npos) << text;
  }
  ranks_ = communicator::create_all(first_devices(2));  // a new communicator works
  buffer const c = on(0, 3), d = on(1, 4);
  add_up(0, c);
  add_up(1, d);
  EXPECT_EQ(read(0, c), encode(int32, {7, 9, 11}));
}

TEST_F(sim_collective, a_rank_that_ends_releases_those_that_wait) {
  buffer const a = on(0, 1);
  stamp const waits = add_up(0, a);
  ranks_.pop_back();
  waits.synchronize();
  EXPECT_NE(refusal<driver_error>([&] { add_up(0, a); }), "");
}

TEST_F(sim_collective, a_rank_without_partners_is_told_so) {
  buffer const a = on(0, 1);
  ranks_.pop_back();
  std::string const text = refusal<invalid_use>([&] { add_up(0, a); });
  EXPECT_NE(text.find("rank 1's communicator is destroyed"), std::string::npos) << text;
  EXPECT_NE(refusal<invalid_use>([&] { ranks_[0].barrier(); }), "");
}

// The thread would wait for its limit.
TEST(collectives, a_barrier_ends_with_its_runtime) {
  auto machine = std::make_unique<runtime>(simulated{.devices = 2, .memory = 64_MiB});
  std::vector<communicator> ranks;
  {
    runtime_guard const in(*machine);
    ranks = communicator::create_all(first_devices(2));
  }
  std::promise<void> comes;
  auto said = std::async(std::launch::async, [&] {
    comes.set_value();
    return refusal<error>([&] { ranks[0].barrier(std::chrono::seconds(30)); });
  });
  comes.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  machine.reset();
  EXPECT_EQ(said.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  std::string const text = said.get();
  EXPECT_EQ(text.find("waited"), std::string::npos) << text;
  EXPECT_NE(text, "");
}

// A second try works.
TEST_F(sim_collective, a_refused_part_changes_nothing) {
  buffer const a = on(0, 1), b = on(1, 10);
  for (int first : {0, 1}) {
    buffer const& mine = first ? b : a;
    add_up(first, mine);
    simulation::of(machine_).fail_call("enqueue", 1);
    EXPECT_NE(refusal<driver_error>([&] { add_up(1 - first, first ? a : b); }), "");
    add_up(1 - first, first ? a : b);
  }
  EXPECT_EQ(read(0, a), encode(int32, {22, 26, 30}));
  EXPECT_EQ(read(1, b), encode(int32, {22, 26, 30}));
}

// Of memory that weir does not know, the driver is asked.
TEST_F(sim_collective, an_unanswered_look_is_told_as_the_drivers) {
  std::vector<std::int32_t> unknown(3);
  simulation::of(machine_).fail_call("find", 1);
  EXPECT_NE(refusal<driver_error>([&] {
              ranks_[0].all_reduce({unknown.data(), 3, int32});
            }).find("all_reduce"),
            std::string::npos);
}

// No rank hangs.
TEST_F(sim_collective, a_part_refused_in_its_middle_ends_it) {
  for (std::uint64_t k : {2u, 3u}) {
    buffer const a = on(0, 1), b = on(1, 10);
    stamp const waits = add_up(0, a);
    simulation::of(machine_).fail_call("enqueue", k);
    EXPECT_NE(refusal<driver_error>([&] { add_up(1, b); }), "");
    waits.synchronize();
    current_stream(device(1)).synchronize();
    EXPECT_NE(refusal<driver_error>([&] { add_up(0, a); }), "");
    ranks_ = communicator::create_all(first_devices(2));
  }
}

// The device is lost behind the last part, before the rank notes that all are there. That note tells the others.
TEST_F(sim_collective, a_device_lost_within_a_call_frees_the_others) {
  struct loses final : driver::fault_injector::watcher {
    driver::sim::controls* of = nullptr;
    int left = 3;  // a call has three parts
    void leaves(driver::call c) noexcept override {
      if (c == driver::call::enqueue && --left == 0)
        of->lose_device(1);
    }
  } behind_the_last;
  driver::driver& machine = machine_.get().machine();
  behind_the_last.of = driver::sim::controls_of(machine);
  buffer const a = on(0, 1), b = on(1, 10);
  base::atomic<bool> freed{false};
  add_up(0, a);
  launch(
      current_stream(device(0)), {}, [](CUstream_st*) {}, [&] { freed.store(true); });
  ASSERT_TRUE(machine.hold(1, streams::clock_of(current_stream(device(1))).handle()).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // rank 0's stream waits for rank 1
  driver::fault_injector_of(machine)->watch(&behind_the_last);
  add_up(1, b);
  driver::fault_injector_of(machine)->watch(nullptr);
  EXPECT_LE(behind_the_last.left, 0);
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!freed.load() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_TRUE(freed.load());
  std::string const text = refusal<driver_error>([&] { add_up(0, a); });
  EXPECT_NE(text.find("gpu:1 is lost"), std::string::npos) << text;
}

TEST_F(sim_collective, a_lost_device_frees_the_others_and_is_named) {
  buffer const a = on(0, 1), b = on(1, 10);
  clock::stream_clock& line = streams::clock_of(current_stream(device(1)));
  auto const gate = machine_.get().machine().hold(1, line.handle());
  ASSERT_TRUE(gate.ok());
  stamp const waits = add_up(0, a);
  add_up(1, b);
  simulation::of(machine_).lose_device(device(1));
  waits.synchronize();
  std::string const text = refusal<driver_error>([&] { add_up(0, a); });
  EXPECT_NE(text.find("gpu:1 is lost"), std::string::npos) << text;
  EXPECT_NE(refusal<driver_error>([&] { add_up(1, b); }), "");
  buffer const c = on(0, 4);
  EXPECT_EQ(read(0, c), encode(int32, {4, 5, 6}));
}

}  // namespace
