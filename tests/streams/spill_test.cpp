// Pools under a spill: which sleep when memory runs out, which a call wakes, and what stays refused.
// Threads: each test says.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "streams/api/spills.h"
#include "tests/support/sanitized.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace weir {
namespace {

constexpr size_t part = 6_MiB;  // what each pool holds, in three blocks

struct spilled : ::testing::Test {
  struct model {
    explicit model(char const* name, unsigned char pattern) : memory(name), pattern(pattern) {
      for (buffer& b : blocks) {
        b = buffer::adopt(memory.allocate(part / 3));
        fill(b.data(), std::byte{pattern}, b.size());
      }
    }
    void step() {  // adds one to each byte
      for (buffer const& b : blocks) {
        auto* const p = static_cast<unsigned char*>(b.data());
        launch(
            current_stream(), {updates(b)}, [](CUstream_st*) {},
            [p, n = b.size()] {
              if (std::memcmp(p, p + 1, n - 1) == 0)
                std::memset(p, p[0] + 1, n);
            });
      }
      ++pattern;
    }
    void expect_bytes() const {
      for (buffer const& b : blocks) {
        std::vector<unsigned char> host(b.size());
        copy(host.data(), b.data(), b.size());
        EXPECT_EQ(host[0], pattern) << memory.name();
        EXPECT_EQ(std::memcmp(host.data(), host.data() + 1, host.size() - 1), 0) << memory.name();
      }
    }
    pool memory;
    unsigned char pattern;
    buffer blocks[3];
  };

  explicit spilled(options o = {}, simulated like = {.devices = 2, .memory = 64_MiB}) : own(like, o), in(own) {
    set_memory_limit(room_for(2));
  }
  ~spilled() override { sound(); }
  static size_t room_for(size_t pools) { return pools * part + 2_MiB; }
  void sound() {
    EXPECT_EQ(own.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
    EXPECT_EQ(simulation::of(own).findings(), std::vector<std::string>{});
    EXPECT_LE(memory_reserved(), room_for(2));
  }

  runtime own;
  runtime_guard in;
};

TEST_F(spilled, the_coldest_sleeps_and_wakes_at_a_launch) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  a.step();
  std::optional<model> c(std::in_place, "c", 3);
  EXPECT_TRUE(b.memory.is_asleep()) << "it was used before a";
  EXPECT_FALSE(a.memory.is_asleep()) << "one makes room enough";
  sound();
  b.step();
  EXPECT_FALSE(b.memory.is_asleep());
  EXPECT_TRUE(a.memory.is_asleep());
  EXPECT_FALSE(c->memory.is_asleep()) << "it is under no spill";
  b.expect_bytes();
  a.expect_bytes();
  EXPECT_TRUE(b.memory.is_asleep());
  c.reset();
  b.expect_bytes();
  EXPECT_FALSE(a.memory.is_asleep()) << "there is room for both";
}

TEST_F(spilled, a_copy_a_fill_and_an_allocation_wake_it) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  auto const put_a_to_sleep = [&] {
    a.expect_bytes();
    b.expect_bytes();
    buffer const hog(part);
    EXPECT_TRUE(a.memory.is_asleep());
    EXPECT_FALSE(b.memory.is_asleep());
  };
  put_a_to_sleep();
  copy(a.blocks[0].data(), a.blocks[1].data(), part / 3);
  EXPECT_FALSE(a.memory.is_asleep());
  put_a_to_sleep();
  fill(a.blocks[0].data(), std::byte{1}, 100);
  EXPECT_FALSE(a.memory.is_asleep());
  put_a_to_sleep();
  copy_item const items[] = {{a.blocks[0].data(), b.blocks[0].data(), 100},
                             {a.blocks[0].data(), a.blocks[1].data(), 100}};
  copy(current_stream(), items);
  EXPECT_FALSE(a.memory.is_asleep());
  put_a_to_sleep();
  void* const p = a.memory.allocate(1000);
  EXPECT_FALSE(a.memory.is_asleep());
  deallocate(p);
  put_a_to_sleep();
  deallocate(a.memory.allocate(1_MiB));
  EXPECT_FALSE(a.memory.is_asleep());
  a.expect_bytes();
}

// Such a call holds nothing: it saw no spill, or not this one.
TEST_F(spilled, calls_that_began_before_it_keep_its_pools) {
  auto const here = source_location::current();
  std::optional<spill> of_another;
  for (bool const first : {true, false}) {
    model a("a", 1);
    std::optional<streams::awake> call(std::in_place, own.get(), "use", nullptr,
                                       std::initializer_list<void const*>{a.blocks[0].data()}, here);
    std::optional<spill> overflow;
    std::atomic<bool> begun{false}, has_room{false};
    std::thread other([&] {
      runtime_guard const inside(own);
      overflow.emplace(std::vector<pool*>{&a.memory});
      begun = true;
      buffer const hog(part + 4_MiB);
      has_room = true;
    });
    while (!begun)
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(a.memory.is_asleep()) << first;
    EXPECT_FALSE(has_room) << first;
    call.reset();
    other.join();
    EXPECT_TRUE(a.memory.is_asleep()) << first;
    a.expect_bytes();
    overflow.reset();
    of_another.emplace(std::vector<pool*>{});
  }
}

// It would wait for itself.
TEST_F(spilled, a_call_from_before_it_finds_no_room_in_its_pools) {
  model a("a", 1);
  std::optional<spill> overflow;
  {
    streams::awake const call(own.get(), "use", nullptr, {a.blocks[0].data()}, source_location::current());
    overflow.emplace(std::vector<pool*>{&a.memory});
    EXPECT_THROW(buffer(part + 4_MiB), out_of_memory);
    EXPECT_FALSE(a.memory.is_asleep());
  }
  buffer const hog(part + 4_MiB);
  EXPECT_TRUE(a.memory.is_asleep());
}

TEST_F(spilled, an_allocation_counts_as_a_use) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  a.expect_bytes();
  b.expect_bytes();
  {
    buffer const hog(part);
    ASSERT_TRUE(a.memory.is_asleep());
  }
  deallocate(a.memory.allocate(1000));
  ASSERT_FALSE(a.memory.is_asleep());
  buffer const hog(part);
  EXPECT_TRUE(b.memory.is_asleep()) << "a was used later";
  EXPECT_FALSE(a.memory.is_asleep());
}

TEST_F(spilled, a_launch_wakes_all_that_it_needs) {
  model a("a", 1), b("b", 2);
  spill overflow({&a.memory, &b.memory});
  model c("c", 3);
  spill more({&c.memory});
  model d("d", 4);
  EXPECT_TRUE(a.memory.is_asleep() && b.memory.is_asleep());
  spill rest({&d.memory});
  auto* const to = static_cast<unsigned char*>(a.blocks[0].data());
  auto* const from = static_cast<unsigned char const*>(b.blocks[2].data());
  launch(
      current_stream(), {updates(a.blocks[0]), reads(from, 100)}, [](CUstream_st*) {},
      [to, from] {
        for (size_t i = 0; i < part / 3; ++i)
          to[i] = static_cast<unsigned char>(to[i] - 2 + from[i % 100]);
      });
  EXPECT_FALSE(a.memory.is_asleep() || b.memory.is_asleep());
  EXPECT_TRUE(c.memory.is_asleep() && d.memory.is_asleep());
  for (model const* m : {&a, &b, &c, &d})
    m->expect_bytes();
}

TEST_F(spilled, a_launch_without_room_leaves_all_whole) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  model c("c", 3);
  spill const more({&c.memory});
  bool ran = false;
  EXPECT_THROW(launch(
                   current_stream(), {reads(a.blocks[0]), reads(b.blocks[0]), updates(c.blocks[0])},
                   [](CUstream_st*) {}, [&] { ran = true; }),
               out_of_memory);
  synchronize();
  EXPECT_FALSE(ran);
  for (model* const m : {&a, &b, &c})
    m->step();
  for (model const* m : {&a, &b, &c})
    m->expect_bytes();
}

TEST_F(spilled, pools_outside_are_refused_by_name) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory});
  b.memory.sleep();
  EXPECT_THROW(b.step(), invalid_use);
  EXPECT_THROW((void)b.memory.allocate(100), invalid_use);
  b.memory.wake();
  EXPECT_THROW((void)spill(std::vector{&a.memory}), invalid_use) << "another spill has it";
  EXPECT_THROW((void)spill(std::vector{&b.memory, &b.memory}), invalid_use);
  spill const second({&b.memory});
}

TEST_F(spilled, a_capture_keeps_its_pools_awake) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  stream const s(weir::device(0));
  auto g = graph::capture(s, [&] { fill(a.blocks[0].data(), std::byte{9}, 100); });
  b.expect_bytes();  // a is colder
  std::optional<buffer> hog(std::in_place, part);
  EXPECT_FALSE(a.memory.is_asleep());
  EXPECT_TRUE(b.memory.is_asleep());
  EXPECT_THROW((void)graph::capture(s, [&] { fill(b.blocks[0].data(), std::byte{9}, 100); }), invalid_use);
  EXPECT_THROW(buffer{part}, out_of_memory) << "no other may sleep";
  g.launch(s);
  s.synchronize();
  fill(a.blocks[0].data(), std::byte{1}, 100);
  a.expect_bytes();
}

TEST_F(spilled, a_collective_keeps_its_pools_awake) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  auto ranks = communicator::create_all(std::vector{weir::device(0)});
  ranks[0].all_reduce({a.blocks[0].data(), 100, dtype::uint8}, reduce_op::sum);
  b.expect_bytes();
  buffer const hog(part);
  EXPECT_FALSE(a.memory.is_asleep());
  EXPECT_TRUE(b.memory.is_asleep());
}

struct spilled_to_short_host : spilled {
  spilled_to_short_host() : spilled({.pinned_limit = 4_MiB}) {}
};
TEST_F(spilled_to_short_host, nothing_sleeps) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  EXPECT_THROW(buffer{part}, out_of_memory);
  EXPECT_FALSE(a.memory.is_asleep() || b.memory.is_asleep());
  a.expect_bytes();
  b.expect_bytes();
}

TEST_F(spilled, what_the_program_frees_comes_first) {
  model a("a", 1);
  spill const overflow({&a.memory});
  std::optional<buffer> cache(std::in_place, part);
  auto const freed = on_out_of_memory([&](memory_report const&) { return cache.reset(), true; });
  buffer const hog(part);
  EXPECT_FALSE(a.memory.is_asleep());
}

TEST_F(spilled, a_limit_of_a_pool_puts_none_to_sleep) {
  model a("a", 1);
  spill const overflow({&a.memory});
  pool const small("small", {.limit = 4_MiB});
  EXPECT_THROW((void)small.allocate(6_MiB), out_of_memory);
  EXPECT_FALSE(a.memory.is_asleep());
}

TEST_F(spilled, a_pool_grows_to_its_limit_at_anothers_cost) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  pool const full("full", {.limit = part});
  deallocate(full.allocate(part));
  EXPECT_TRUE(a.memory.is_asleep());
}

TEST_F(spilled, pools_and_spills_end_in_any_order) {
  std::optional<model> a(std::in_place, "a", 1);
  model b("b", 2);
  {
    std::optional<spill> overflow(std::in_place, std::vector{&a->memory, &b.memory});
    b.step();
    std::optional<buffer> hog(std::in_place, part);
    EXPECT_TRUE(a->memory.is_asleep());
    a.reset();
    hog.reset();
    hog.emplace(2 * part);
    EXPECT_TRUE(b.memory.is_asleep());
    overflow.reset();
    EXPECT_THROW(b.step(), invalid_use) << "nothing wakes it any more";
    hog.reset();
  }
  b.memory.wake();
  b.expect_bytes();
  pool elsewhere(std::move(b.memory));
  spill const overflow({&elsewhere});
  buffer const hog(2 * part);
  EXPECT_TRUE(elsewhere.is_asleep());
}

// What sleeps there is gone. The device of the pool is not.
TEST_F(spilled, a_lost_neighbour_is_no_loss_of_the_pools_device) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory}, {.neighbours = {weir::device(1)}});
  {
    buffer const more(part);  // a falls asleep
    synchronize();
    ASSERT_TRUE(a.memory.is_asleep());
  }
  simulation::of(own).lose_device(1);
  EXPECT_THROW(synchronize(weir::device(1)), device_lost);
  try {
    a.memory.wake();
    ADD_FAILURE() << "its bytes are gone";
  } catch (device_lost const&) {
    ADD_FAILURE() << "gpu:0 is not lost";
  } catch (error const&) {}
  b.step();
  synchronize();
  b.expect_bytes();
}

TEST_F(spilled, a_neighbour_comes_before_the_host) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory}, {.neighbours = {weir::device(1)}});
  {
    buffer const hog(part);
    EXPECT_TRUE(a.memory.is_asleep());
    EXPECT_GE(memory_allocated(1), part);
    EXPECT_GE(memory_stats(1).peer_access_bytes, part);
    EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
  }
  a.step();
  EXPECT_EQ(memory_allocated(1), 0u);
  a.expect_bytes();
  empty_cache(1);
  set_memory_limit(4_MiB, 1);
  buffer const hog(part);
  EXPECT_TRUE(b.memory.is_asleep());
  EXPECT_EQ(memory_allocated(1), 0u) << "there is no room";
  a.expect_bytes();
}

TEST_F(spilled, the_last_free_gives_back_the_neighbours_memory) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory}, {.neighbours = {weir::device(1)}});
  buffer const hog(part);
  EXPECT_TRUE(a.memory.is_asleep());
  EXPECT_GE(memory_allocated(1), part);
  for (buffer& block : a.blocks)
    block.reset();
  EXPECT_EQ(memory_allocated(1), 0u);
  {
    buffer const next(part, {.on = weir::device(1)});  // in that place
    a.memory.wake();
    EXPECT_TRUE(find_block(next.data())) << "it was given back once";
  }
  empty_cache(1);
  EXPECT_EQ(memory_reserved(1), 0u);
  EXPECT_EQ(a.memory.statistics().asleep, 0u);
}

// Each driver call in turn is refused while a launch puts one pool to sleep and wakes another.
TEST_F(spilled, a_refused_call_leaves_all_whole) {
  auto control = simulation::of(own);
  std::uint64_t k = 1;
  for (bool failed = true; failed; k += tests::sanitized ? 4 : 1) {
    model a("a", 1), b("b", 2);
    spill const overflow({&a.memory, &b.memory});
    model c("c", 3);
    spill const more({&c.memory});
    synchronize();
    auto const number = control.fail_call("any", k);
    try {
      a.step();
    } catch (error const&) {
      a.pattern = 1;
    }
    failed = !control.cancel_failure(number);
    sound();
    for (model* const m : {&b, &c})
      m->step();
    for (model const* const m : {&b, &c})
      m->expect_bytes();
    for (buffer const& block : a.blocks)
      fill(block.data(), std::byte{a.pattern}, block.size());
    a.expect_bytes();
    sound();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "call " << k;
  }
  EXPECT_GT(k, 20u) << "few calls were refused";
}

struct spilled_under_checker : spilled {
  spilled_under_checker() : spilled({.check_races = true}) {}
};
TEST_F(spilled_under_checker, sleeping_and_waking_race_with_nothing) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  model c("c", 3);
  spill const more({&c.memory});
  for (int round = 0; round < 3; ++round) {
    for (model* const m : {&a, &b, &c}) {
      m->step();
      buffer const between(1_MiB);
      fill(between.data(), std::byte{9}, between.size());
    }
  }
  for (model const* const m : {&a, &b, &c})
    m->expect_bytes();
  EXPECT_EQ(race_reports().size(), 0u);
  for (auto const& r : race_reports())
    ADD_FAILURE() << r.text;
}

// Each has a model and temporaries; the device holds one and a half.
TEST_F(spilled, threads_take_turns) {
  std::array<std::optional<model>, 3> all;
  std::vector<std::unique_ptr<spill>> spills;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].emplace("of a thread", static_cast<unsigned char>(10 * i));
    spills.push_back(std::make_unique<spill>(std::vector{&all[i]->memory}));
  }
  std::vector<std::thread> threads;
  for (auto& its : all) {
    threads.emplace_back([&] {
      runtime_guard const here(own);
      stream const mine(weir::device(0));
      stream_guard const on(mine);
      mine.wait(default_stream(0));
      for (int i = 0; i < 20; ++i) {
        its->step();
        deallocate(its->memory.allocate(i % 2 ? 1000 : 300_KiB));
        if (i % 5 == 0)
          its->expect_bytes();
        mine.synchronize();
      }
      its->expect_bytes();
    });
  }
  for (std::thread& t : threads)
    t.join();
}

TEST_F(spilled, a_pool_in_use_is_waited_for) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory});
  std::initializer_list<void const*> const uses = {a.blocks[0].data()};
  auto launching = std::make_unique<streams::awake>(own.get(), "launch", nullptr, uses, source_location::current());
  std::atomic<bool> made = false;
  std::thread other([&] {
    runtime_guard const here(own);
    buffer const hog(part);
    made = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(made);
  EXPECT_FALSE(a.memory.is_asleep());
  launching.reset();
  other.join();
  EXPECT_TRUE(a.memory.is_asleep());
}

// A thread with a pool in use waits for no other: it puts others to sleep, or has no memory.
TEST_F(spilled, a_launch_may_allocate_inside) {
  model a("a", 1), b("b", 2);
  spill const overflow({&a.memory, &b.memory});
  {
    streams::awake const launching(own.get(), "launch", nullptr, {a.blocks[0].data()}, source_location::current());
    buffer const temporary(part);
    EXPECT_TRUE(b.memory.is_asleep());
    EXPECT_THROW(buffer{part}, out_of_memory);
    EXPECT_THROW(b.step(), invalid_use) << "nothing wakes inside";
    EXPECT_THROW((void)b.memory.allocate(100), invalid_use);
    a.step();
  }
  b.step();
  b.expect_bytes();
  a.expect_bytes();
}

}  // namespace
}  // namespace weir
