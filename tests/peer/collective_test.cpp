// Collectives on the machine at hand, and cases that only a simulated machine can arrange.
#include "tests/peer/ranks.h"

#include "peer/collective/group.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

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
      if (in_place)
        copy(slice, mine.data(), mine.size());
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

// Element i of the part from rank a to rank b is brought(type, a, b * count + i).
TEST(collective, all_to_all_sends_each_part_to_its_rank) {
  for (int n = 1; n <= ranks_here(); ++n) {
    auto ranks = communicator::create_all(first_devices(n));
    for (dtype const type : {int32, boolean, float64}) {
      for (std::int64_t const count : {0, 1, 77, 4099}) {
        on_each(runtime::current(), ranks, [&](communicator& c) {
          std::mt19937 random(static_cast<unsigned>(c.rank() + count));
          elements const mine =
              encode(type, values_of(count * n, [&](std::int64_t i) { return brought(type, c.rank(), i); }));
          buffer const in = to_device(mine), out(mine.size());
          pause_at_random(random);
          c.all_to_all({out.data(), count * n, type}, {in.data(), count * n, type});
          EXPECT_EQ(to_host(out.data(), out.size()), encode(type, values_of(count * n,
                                                                            [&](std::int64_t i) {
                                                                              return brought(
                                                                                  type, static_cast<int>(i / count),
                                                                                  c.rank() * count + i % count);
                                                                            })))
              << name_of(type) << " of " << count << " on " << n;
          EXPECT_EQ(to_host(in.data(), in.size()), mine) << "the input is only read";
        });
      }
    }
  }
}

TEST(collective, a_captured_all_to_all_exchanges_at_each_launch) {
  constexpr int n = 3;
  constexpr std::int64_t count = 65;
  runtime own(simulated{.devices = n, .memory = 16_MiB});
  runtime_guard const here{own};
  auto ranks = communicator::create_all(first_devices(n));
  on_each(own, ranks, [&](communicator& c) {
    stream const s;
    stream_guard const on(s);
    auto const of = [&](int rank, int turn) {  // what a rank sends at a launch
      return encode(int32, values_of(n * count, [&](std::int64_t i) { return brought(int32, rank, i + turn); }));
    };
    buffer const in(n * count * 4), out(in.size());
    graph step = graph::capture(s, [&] {
      c.all_to_all({out.data(), n * count, int32}, {in.data(), n * count, int32});
    });
    for (int turn = 0; turn < 3; ++turn) {
      copy(in.data(), of(c.rank(), turn).data(), in.size());
      step.launch(s);
      elements want;
      for (int from = 0; from < n; ++from) {
        elements const all = of(from, turn);
        auto const part = all.begin() + c.rank() * count * 4;
        want.insert(want.end(), part, part + count * 4);
      }
      EXPECT_EQ(to_host(out.data(), out.size()), want) << turn;
    }
  });
}

TEST(collective, all_to_all_of_unequal_or_shared_memory_is_refused) {
  int const n = std::min(2, ranks_here());
  auto ranks = communicator::create_all(first_devices(n));
  communicator& c = ranks[0];
  device_guard const on(0);
  buffer const in = to_device(elements(64)), out = to_device(elements(64));
  auto const text_of = [&](device_span to, device_span from) {
    return refusal<invalid_use>([&] { c.all_to_all(to, from); });
  };
  auto const at = [](buffer const& b, std::size_t byte, std::int64_t count, dtype type = int32) {
    return device_span{b.data<std::byte>() + byte, count, type};
  };
  EXPECT_NE(text_of(at(out, 0, 8), at(in, 0, 4)).find("in of 4 and out of 8 elements for"), std::string::npos);
  if (n == 2) {
    EXPECT_NE(text_of(at(out, 0, 3), at(in, 0, 3)).find("a multiple of the number of ranks"), std::string::npos);
  }
  EXPECT_NE(text_of(at(out, 0, 4), at(in, 0, 4, float32)).find("one element type"), std::string::npos);
  EXPECT_NE(text_of(at(out, 0, 18), at(in, 0, 18)).find("holds 64 B"), std::string::npos);
  EXPECT_NE(text_of(at(in, 12, 4), at(in, 0, 4)).find("overlaps"), std::string::npos);
  EXPECT_NE(text_of(at(in, 0, 4), at(in, 0, 4)).find("overlaps"), std::string::npos);
  EXPECT_NE(text_of(at(out, 0, -4), at(in, 0, -4)).find("negative"), std::string::npos);
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
    for (int round = 0; round < 20; ++round)
      want *= n;
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
  if (ranks_here() < 2)
    GTEST_SKIP() << "one device: no rank can be missing";
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
  if (ranks_here() < 2)
    GTEST_SKIP() << "one device";
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
    void issue(int, clock::stream_clock&, peer::requests, source_location) override {}
    std::string broken(int) override { return {}; }
    void abort() noexcept override {}
    void leave(int rank) noexcept override { left.push_back(rank); }
    std::vector<int>& left;
  };
  runtime machine(simulated{.devices = 3, .memory = 16_MiB});
  std::vector<int> left;
  peer::thread_group all(machine.get(), {0, 1, 2}, std::make_unique<noting>(left));
  all.leave(1);
  all.runtime_ends();
  for (int const rank : {0, 2})
    all.leave(rank);
  EXPECT_EQ(left, (std::vector{1, 0, 2}));
}

// An abort stops the backend, which does not know whose it was. A call that has passed the first check learns it there.
TEST(collective, an_abort_under_way_names_its_rank) {
  struct stopped final : peer::collective_backend {
    explicit stopped(bool in_issue) : in_issue(in_issue) {}
    void issue(int, clock::stream_clock&, peer::requests, source_location) override {
      all->abort(1, "its own reason");
      throw std::runtime_error("the communicator was aborted");
    }
    std::string broken(int) override {
      if (!over && !in_issue)
        all->abort(1, "its own reason");
      return over ? "the communicator was aborted" : "";
    }
    void abort() noexcept override { over = true; }
    void leave(int) noexcept override {}
    bool const in_issue;
    bool over = false;
    peer::thread_group* all = nullptr;
  };
  for (bool const in_issue : {false, true}) {
    runtime machine(simulated{.devices = 2, .memory = 16_MiB});
    runtime_guard const in(machine);
    auto carrier = std::make_unique<stopped>(in_issue);
    stopped& by = *carrier;
    peer::thread_group all(machine.get(), {0, 1}, std::move(carrier));
    by.all = &all;
    auto const here = source_location::current();
    buffer const x(4);
    auto r = peer::asking{0, 2, here}.all_reduce({x.data(), 1, int32}, reduce_op::sum);
    std::string const text = refusal<driver_error>([&] { (void)all.call(0, {&r, 1}, {&here, 1}, here); });
    EXPECT_NE(text.find("rank 1 aborted this communicator: its own reason"), std::string::npos) << text;
  }
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
  EXPECT_TRUE(hand.step(s1));  // departs
  EXPECT_TRUE(hand.step(s0));
  EXPECT_FALSE(hand.step(s0));
  EXPECT_FALSE(hand.step(s1));
  done.synchronize();
  EXPECT_EQ(to_host(blocks[0].data(), 12), encode(int32, {2, 4, 6}));
}

}  // namespace
