// Collectives on the machine at hand, and cases that only a simulated machine can arrange.
#include "tests/peer/ranks.h"

#include <future>

#include "peer/collective/group.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

int ranks_here() { return std::min(4, device_count()); }

// Small whole numbers add up exactly in every type. Averages may divide each before they add.
bool close(dtype type, reduce_op how, double got, double want) {
  bool const exact = how != reduce_op::average || type == int8 || type == uint8 || type == int32 || type == int64;
  double const tolerance = exact ? 0 : type == float64 ? 1e-12 : type == float32 ? 4e-6 : type == float16 ? 1e-2 : 1e-1;
  return std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want));
}

TEST(collective, all_reduce_gives_every_rank_equal_right_bits) {
  for (int n = 1; n <= ranks_here(); ++n) {
    auto ranks = communicator::create_all(first_devices(n));
    for (dtype const type : reducible_types) {
      for (reduce_op const how : all_reductions) {
        std::int64_t const counts[] = {0, 1, 3, 63, 64, 65, 1000, 4099};
        std::int64_t const count =
            counts[(static_cast<unsigned>(type) * 4 + static_cast<unsigned>(how) + static_cast<unsigned>(n)) %
                   std::size(counts)];
        std::vector<elements> results(ranks.size());
        on_each(runtime::current(), ranks, [&](communicator& c) {
          std::mt19937 random(static_cast<unsigned>(c.rank() + count));
          buffer const b =
              to_device(encode(type, values_of(count, [&](std::int64_t i) { return brought(type, c.rank(), i); })));
          pause_at_random(random);
          c.all_reduce({b.data(), count, type}, how);
          results[static_cast<std::size_t>(c.rank())] = to_host(b.data(), b.size());
        });
        for (elements const& e : results)
          ASSERT_EQ(e, results[0]) << name_of(type) << " " << name_of(how) << " of " << count << " on " << n;
        for (std::int64_t i = 0; i < count; ++i) {
          double const got = decode(type, results[0].data() + static_cast<std::size_t>(i) * size_of(type)),
                       want = reduced(type, how, n, i);
          ASSERT_TRUE(close(type, how, got, want)) << name_of(type) << " " << name_of(how) << " of " << count << " on "
                                                   << n << ": element " << i << " is " << got << ", not " << want;
        }
      }
    }
  }
}

TEST(collective, all_reduce_of_ragged_counts_reaches_every_element) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  for (std::int64_t count = 0; count < 400; count = count * 2 + 1 + count % 3) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      buffer const b =
          to_device(encode(int32, values_of(count, [&](std::int64_t i) { return brought(int32, c.rank(), i); })));
      c.all_reduce({b.data(), count, int32});
      EXPECT_EQ(to_host(b.data(), b.size()),
                encode(int32, values_of(count, [&](std::int64_t i) { return reduced(int32, reduce_op::sum, n, i); })))
          << count;
    });
  }
}

TEST(collective, broadcast_gives_all_ranks_the_roots_elements) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  for (dtype const type : {float32, int16, boolean, float64}) {
    for (int root = 0; root < n; ++root) {
      std::int64_t const count = 1001;
      on_each(runtime::current(), ranks, [&](communicator& c) {
        std::mt19937 random(static_cast<unsigned>(c.rank() + root));
        buffer const b =
            to_device(encode(type, values_of(count, [&](std::int64_t i) { return brought(type, c.rank(), i); })));
        pause_at_random(random);
        c.broadcast({b.data(), count, type}, root);
        EXPECT_EQ(to_host(b.data(), b.size()),
                  encode(type, values_of(count, [&](std::int64_t i) { return brought(type, root, i); })))
            << name_of(type) << " from " << root;
      });
    }
  }
}

// Apart and in place.
TEST(collective, all_gather_places_every_part) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const count = 77;
  for (bool const in_place : {false, true}) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      elements const mine =
          encode(int32, values_of(count, [&](std::int64_t i) { return brought(int32, c.rank(), i); }));
      buffer const in = to_device(mine), out(mine.size() * static_cast<std::size_t>(n));
      void* const slice = out.data<std::byte>() + static_cast<std::size_t>(c.rank()) * mine.size();
      if (in_place) copy(slice, mine.data(), mine.size());
      c.all_gather({out.data(), count * n, int32}, {in_place ? slice : in.data(), count, int32});
      EXPECT_EQ(to_host(out.data(), out.size()), encode(int32, values_of(count * n, [&](std::int64_t i) {
                                                          return brought(int32, static_cast<int>(i / count), i % count);
                                                        })));
    });
  }
}

// Apart and in place.
TEST(collective, reduce_scatter_gives_each_rank_its_part) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const count = 77;
  for (bool const in_place : {false, true}) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      elements const mine =
          encode(int64, values_of(count * n, [&](std::int64_t i) { return brought(int64, c.rank(), i); }));
      buffer const in = to_device(mine), out(mine.size() / static_cast<std::size_t>(n));
      void* const slice = in.data<std::byte>() + static_cast<std::size_t>(c.rank()) * out.size();
      c.reduce_scatter({in_place ? slice : out.data(), count, int64}, {in.data(), count * n, int64}, reduce_op::max);
      EXPECT_EQ(to_host(in_place ? slice : out.data(), out.size()), encode(int64, values_of(count, [&](std::int64_t i) {
                                                                             return reduced(int64, reduce_op::max, n,
                                                                                            c.rank() * count + i);
                                                                           })));
      if (!in_place) {
        EXPECT_EQ(to_host(in.data(), in.size()), mine) << "the input is only read";
      }
    });
  }
}

TEST(collective, many_in_a_row_keep_their_order) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    std::int64_t const one = 1;
    buffer const b = to_device(encode(int64, {1}));
    for (int round = 0; round < 20; ++round) {  // n times as large each round
      pause_at_random(random);
      c.all_reduce({b.data(), one, int64});
    }
    double want = 1;
    for (int round = 0; round < 20; ++round) want *= n;
    EXPECT_EQ(to_host(b.data(), 8), encode(int64, {want}));
  });
}

TEST(collective, barrier_releases_no_rank_before_the_last) {
  auto ranks = communicator::create_all(first_devices(ranks_here()));
  std::atomic<int> came{0};
  on_each(runtime::current(), ranks, [&](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    for (int round = 1; round <= 50; ++round) {
      pause_at_random(random);
      ++came;
      c.barrier();
      EXPECT_GE(came.load(), round * c.size());
      c.barrier(std::chrono::milliseconds::max());
    }
  });
}

// The barrier can be tried again.
TEST(collective, a_timed_out_barrier_names_the_missing_rank) {
  if (ranks_here() < 2) GTEST_SKIP() << "one device: no rank can be missing";
  auto ranks = communicator::create_all(first_devices(2));
  std::string const text = refusal<timed_out>([&] { ranks[0].barrier(std::chrono::milliseconds{20}); });
  EXPECT_NE(text.find("rank 0 waited 20 ms for rank 1 (gpu:1)"), std::string::npos) << text;
  // Rank 0 is missing: rank 1 alone does not pass.
  EXPECT_NE(refusal<timed_out>([&] { ranks[1].barrier(std::chrono::milliseconds{20}); }), "");
  on_each(runtime::current(), ranks, [](communicator& c) { c.barrier(); });
}

TEST(collective, bad_groups_of_devices_are_refused_by_name) {
  int const n = device_count();
  auto const text_of = [](std::vector<device> d) { return refusal<invalid_use>([&] { communicator::create_all(d); }); };
  EXPECT_NE(text_of({}), "");
  EXPECT_NE(text_of({device(n)}).find("gpu:" + std::to_string(n)), std::string::npos);
  EXPECT_NE(text_of({cpu}), "");
  std::string const twice = text_of({device(0), device(0)});
  EXPECT_NE(twice.find("gpu:0 is named twice"), std::string::npos) << twice;
}

TEST(collective, too_small_memory_is_refused_unchanged) {
  auto ranks = communicator::create_all(first_devices(1));
  communicator& c = ranks[0];
  device_guard const on(0);
  buffer const b = to_device(encode(int32, {1, 2, 3, 4}));
  auto const text_of = [&](device_span what) { return refusal<invalid_use>([&] { c.all_reduce(what); }); };
  EXPECT_NE(text_of({b.data(), 5, int32}).find("holds 16 B, asked 20 B"), std::string::npos)
      << text_of({b.data(), 5, int32});
  EXPECT_NE(text_of({b.data<std::byte>() + 4, 4, int32}).find("holds 12 B to the end of its block of 16 B"),
            std::string::npos);
  EXPECT_NE(text_of({b.data(), -1, int32}).find("negative"), std::string::npos);
  EXPECT_NE(text_of({b.data(), std::int64_t{1} << 62, int64}), "");
  std::int32_t host[4] = {};
  EXPECT_NE(text_of({host, 4, int32}).find("is not memory of gpu:0"), std::string::npos) << text_of({host, 4, int32});
  EXPECT_NE(text_of({nullptr, 4, int32}), "");
  EXPECT_NE(refusal<not_supported>([&] { c.all_reduce({b.data(), 2, int16}); }), "");
  EXPECT_NE(refusal<not_supported>([&] { c.reduce_scatter({b.data(), 2, int16}, {b.data(), 2, int16}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { c.broadcast({b.data(), 4, int32}, 1); }).find("root 1 of 1"), std::string::npos);
  EXPECT_NE(refusal<invalid_use>([&] { c.all_gather({b.data(), 4, int32}, {b.data(), 3, int32}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] {
              c.all_gather({b.data(), 2, int32}, {b.data<std::byte>() + 4, 2, int32});
            }).find("overlaps"),
            std::string::npos);
  EXPECT_NE(refusal<invalid_use>([&] { c.all_gather({b.data(), 4, int32}, {b.data(), 4, float32}); }), "");
  c.all_reduce({b.data(), 4, int32});
  EXPECT_EQ(to_host(b.data(), 16), encode(int32, {1, 2, 3, 4}));
}

TEST(collective, memory_of_another_device_is_refused_naming_both) {
  if (ranks_here() < 2) GTEST_SKIP() << "one device";
  auto ranks = communicator::create_all(first_devices(2));
  device_guard const on(1);
  buffer const b(64);
  std::string const text = refusal<invalid_use>([&] { ranks[0].all_reduce({b.data(), 16, float32}); });
  EXPECT_NE(text.find("gpu:1"), std::string::npos) << text;
  EXPECT_NE(text.find("gpu:0"), std::string::npos) << text;
}

// By itself or when its runtime ends.
TEST(collective, every_rank_leaves_the_carrier_once) {
  struct noting final : peer::collective_backend {
    explicit noting(std::vector<int>& l) : left(l) {}
    void issue(int, clock::stream_clock&, std::uint64_t, peer::collective_request const&, source_location) override {}
    std::string broken(int) override { return {}; }
    void abort() noexcept override {}
    void leave(int rank) noexcept override { left.push_back(rank); }
    std::vector<int>& left;
  };
  runtime machine(simulated{.devices = 3, .memory = 16_MiB});
  std::vector<int> left;
  peer::group all(machine.get(), {0, 1, 2}, std::make_unique<noting>(left));
  all.leave(1);
  all.runtime_ends();
  for (int const rank : {0, 2}) all.leave(rank);
  EXPECT_EQ(left, (std::vector{1, 0, 2}));
}

// One thread arranges the order of the ranks: on a simulated machine no call waits for other ranks.
class sim_collective : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 3, .memory = 1_GiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_ = communicator::create_all(first_devices(2));

  buffer on(int rank, double value) {
    device_guard const at(ranks_[static_cast<std::size_t>(rank)].device());
    return to_device(encode(int32, {value, value + 1, value + 2}));
  }
  elements read(int rank, buffer const& b) {
    device_guard const at(ranks_[static_cast<std::size_t>(rank)].device());
    return to_host(b.data(), b.size());
  }
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
      for (int i = 0; i < 200; ++i) all.push_back(allocate(waits.ref(), 4096));
      for (void* const p : all) deallocate(p);
      if (where != waits_in::sum_right_after) waits.synchronize();
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
  EXPECT_NE(shorter.find("collective_test.cpp"), std::string::npos) << shorter;
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

TEST(seeded_ranks, results_do_not_depend_on_the_seed) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    runtime machine(simulated{.devices = 3, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(3));
    std::vector<buffer> blocks;
    for (communicator const& c : ranks) {
      device_guard const at(c.device());
      blocks.push_back(
          to_device(encode(float32, values_of(200, [&](std::int64_t i) { return brought(float32, c.rank(), i); }))));
    }
    for (int round = 0; round < 3; ++round) {
      for (std::size_t r = 0; r < ranks.size(); ++r)
        ranks[(r + seed) % 3].all_reduce({blocks[(r + seed) % 3].data(), 200, float32},
                                         round ? reduce_op::max : reduce_op::sum);
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      device_guard const at(ranks[r].device());
      ASSERT_EQ(to_host(blocks[r].data(), blocks[r].size()),
                encode(float32, values_of(200, [&](std::int64_t i) { return reduced(float32, reduce_op::sum, 3, i); })))
          << "seed " << seed;
    }
    auto const findings = simulation::of(machine).findings();
    ASSERT_TRUE(findings.empty()) << "seed " << seed << ": " << findings[0];
  }
}

TEST(seeded_ranks, a_wait_for_an_absent_rank_is_reported) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 7});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(2));
  device_guard const at(0);
  buffer const a = to_device(encode(int32, {1, 2, 3}));
  ranks[0].all_reduce({a.data(), 3, int32});
  std::string const text = refusal<invalid_use>([&] { simulation::of(machine).run(); });
  EXPECT_NE(text.find("is at rank 0's part of all_reduce of 3 int32 (sum) (collective_test.cpp:"), std::string::npos)
      << text;
  EXPECT_NE(text.find("which waits for rank 1's part, which was not enqueued"), std::string::npos) << text;
  ranks[0].abort();
  simulation::of(machine).run();
}

// A communicator outlives its runtime. Regression: at the end of a runtime over GPUs, a newer stream waited
// for ever for a rank that never came.
TEST(seeded_ranks, one_of_a_single_rank_does_not_block_the_end) {
  std::vector<communicator> kept;
  std::vector<std::string> told;
  {
    runtime machine(simulated{.devices = 2, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = 1},
                    {.check_races = true});
    runtime_guard const in(machine);
    on_race([&told](race_report const& r) { told.push_back(r.text); });
    kept = communicator::create_all(first_devices(2));
    stream const later(device(0));
    stream_guard const on(later);
    buffer const block(400);
    kept[0].all_reduce({block.data(), 100, int32});
  }
  EXPECT_EQ(told, std::vector<std::string>{});
}

TEST(stepped_collective, each_part_goes_after_those_it_waits_for) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(machine);
  simulation hand = simulation::of(machine);
  auto ranks = communicator::create_all(first_devices(2));
  std::vector<buffer> blocks;
  for (communicator const& c : ranks) {
    device_guard const at(c.device());
    blocks.push_back(to_device(encode(int32, {1, 2, 3})));
  }
  hand.run();
  stamp const done = ranks[0].all_reduce({blocks[0].data(), 3, int32});
  ranks[1].all_reduce({blocks[1].data(), 3, int32});
  stream_ref const s0 = current_stream(device(0)), s1 = current_stream(device(1));
  EXPECT_TRUE(hand.step(s0));   // arrives
  EXPECT_FALSE(hand.step(s0));  // rank 1 has not
  EXPECT_TRUE(hand.step(s1));
  EXPECT_TRUE(hand.step(s0));   // its share
  EXPECT_FALSE(hand.step(s0));  // rank 1's share is not done
  EXPECT_TRUE(hand.step(s1));
  EXPECT_TRUE(hand.step(s1));   // departs
  EXPECT_TRUE(hand.step(s0));
  EXPECT_FALSE(hand.step(s0));
  EXPECT_FALSE(hand.step(s1));
  done.synchronize();
  EXPECT_EQ(to_host(blocks[0].data(), 12), encode(int32, {2, 4, 6}));
}

}  // namespace
