// Sends and receives between two ranks, on the machine at hand; and cases that only a simulated machine can arrange.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h.
#include "runtime/clock/stream_clock.h"
#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "tests/support/seeds.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::transfer_tests {
namespace {

using namespace test;

elements values(dtype type, int rank, std::int64_t count, std::int64_t first = 0) {
  return encode(type, values_of(count, [&](std::int64_t i) { return brought(type, rank, first + i); }));
}
device_span all_of(buffer const& b, dtype type = int32) {
  return {b.data(), static_cast<std::int64_t>(b.size() / size_of(type)), type};
}

TEST(transfer, brings_every_count_and_type) {
  if (ranks_here() < 2)
    GTEST_SKIP() << "one device";
  constexpr dtype types[] = {float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, boolean};
  for (int n = 2; n <= ranks_here(); ++n) {
    auto ranks = communicator::create_all(first_devices(n));
    on_each(runtime::current(), ranks, [&](communicator& c) {
      std::mt19937 random(static_cast<unsigned>(c.rank()));
      for (int from = 0; from < n; ++from) {
        int const to = (from + 1 + from % (n - 1)) % n;
        for (dtype const type : types) {
          for (std::int64_t const count : {0, 1, 77, 4099}) {
            pause_at_random(random);
            elements const sent = values(type, from, count);
            if (c.rank() == from) {
              buffer const in = to_device(sent);
              c.send({in.data(), count, type}, to);
              EXPECT_EQ(to_host(in.data(), in.size()), sent) << "the input is only read";
            } else if (c.rank() == to) {
              buffer const out(sent.size());
              c.receive({out.data(), count, type}, from);
              EXPECT_EQ(to_host(out.data(), out.size()), sent) << name_of(type) << " of " << count << " on " << n;
            }
          }
        }
      }
    });
  }
}

// Neither half waits for the other: no rank calls first.
TEST(transfer, rings_and_exchanges_complete) {
  if (ranks_here() < 2)
    GTEST_SKIP() << "one device";
  for (int n = 2; n <= ranks_here(); ++n) {
    auto ranks = communicator::create_all(first_devices(n));
    on_each(runtime::current(), ranks, [&](communicator& c) {
      int const next = (c.rank() + 1) % n, last = (c.rank() + n - 1) % n;
      buffer held = to_device(values(float32, c.rank(), 1000)), got(held.size());
      for (int step = 0; step < n; ++step) {
        c.send_receive(all_of(held, float32), next, all_of(got, float32), last);
        std::swap(held, got);
        EXPECT_EQ(to_host(held.data(), held.size()), values(float32, (c.rank() + n - 1 - step) % n, 1000));
      }
      int const other = c.rank() ^ 1;  // two that send each other unequal counts and types
      if (other >= n)
        return;
      auto const count = [](int rank) { return rank % 2 ? 33 : 5; };
      auto const type = [](int rank) { return rank % 2 ? int8 : float64; };
      buffer const mine = to_device(values(type(c.rank()), c.rank(), count(c.rank()))),
                   its = to_device(elements(values(type(other), other, count(other)).size()));
      c.send_receive(all_of(mine, type(c.rank())), other, all_of(its, type(other)), other);
      EXPECT_EQ(to_host(its.data(), its.size()), values(type(other), other, count(other)));
    });
  }
}

struct call {
  int kind;  // 0: all ranks reduce; 1: `from` sends to `to`; 2: both exchange
  int from, to;
  std::int64_t count;
};

std::vector<call> draw(std::uint64_t seed, int n) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<call> all(10 + random() % 30);
  for (call& c : all) {
    int const from = static_cast<int>(random() % static_cast<unsigned>(n)),
              step = 1 + static_cast<int>(random() % static_cast<unsigned>(n - 1));
    c = {static_cast<int>(random() % 5), from, (from + step) % n,
         static_cast<std::int64_t>(random() % 3 ? random() % 100 : random() % 9000)};
    c.kind = c.kind == 0 ? 0 : c.kind == 4 ? 2 : 1;
  }
  return all;
}

// One rank's buffers of a program: they are made before its first call, since a later copy could wait for others.
struct played {
  struct buffers {
    buffer in, out;
    elements want;  // in `out`, or in `in` if all reduce
  };
  std::vector<buffers> of;

  played(int rank, int n, std::vector<call> const& all) {
    for (std::size_t k = 0; k < all.size(); ++k) {
      call const& it = all[k];
      auto const mine = [&](int r) { return values(int32, r, it.count, static_cast<std::int64_t>(k)); };
      buffers& b = of.emplace_back();
      if (it.kind == 0 || it.from == rank || it.kind == 2)
        b.in = to_device(mine(rank));
      if (it.kind == 0) {
        b.want = encode(int32, values_of(it.count, [&](std::int64_t i) {
                          return reduced(int32, reduce_op::sum, n, i + static_cast<std::int64_t>(k));
                        }));
      } else if (it.to == rank || (it.kind == 2 && it.from == rank)) {
        b.want = mine(it.from == rank ? it.to : it.from);
        b.out = to_device(elements(b.want.size()));
      }
    }
  }
  void make(communicator& c, std::vector<call> const& all, std::size_t k) const {
    call const& it = all[k];
    int const other = c.rank() == it.from ? it.to : it.from;
    if (it.kind == 0)
      c.all_reduce(all_of(of[k].in));
    else if (c.rank() != it.from && c.rank() != it.to)
      return;
    else if (it.kind == 2)
      c.send_receive(all_of(of[k].in), other, all_of(of[k].out), other);
    else if (c.rank() == it.from)
      c.send(all_of(of[k].in), other);
    else
      c.receive(all_of(of[k].out), other);
  }
  void check() const {
    for (std::size_t k = 0; k < of.size(); ++k) {
      buffer const& got = of[k].out.size() ? of[k].out : of[k].in;
      if (!of[k].want.empty()) {
        EXPECT_TRUE(to_host(got.data(), got.size()) == of[k].want) << "call " << k;
      }
    }
  }
};

TEST(transfer, random_programs_do_as_the_host_computes) {
  int const n = ranks_here();
  if (n < 2)
    GTEST_SKIP() << "one device";
  auto ranks = communicator::create_all(first_devices(n));
  for (std::uint64_t const seed : tests::seeds("transfers", 40)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    auto const program = draw(seed, n);
    on_each(runtime::current(), ranks, [&](communicator& c) {
      std::mt19937 random(static_cast<unsigned>(seed + static_cast<unsigned>(c.rank())));
      played const mine(c.rank(), n, program);
      for (std::size_t k = 0; k < program.size(); ++k) {
        pause_at_random(random);
        mine.make(c, program, k);
      }
      mine.check();
    });
  }
}

// One thread plays the ranks in an order of its own.
TEST(seeded_transfers, bring_the_same_under_every_seed) {
  constexpr int n = 3;
  for (std::uint64_t const seed : tests::seeds("seeded transfers", 100)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    runtime machine(simulated{.devices = n, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(n));
    auto const program = draw(seed, n);
    std::vector<played> all;
    for (int r = 0; r < n; ++r) {
      device_guard const on(r);
      all.emplace_back(r, n, program);
    }
    std::vector<std::size_t> next(n);
    std::mt19937 random(static_cast<unsigned>(seed));
    for (std::size_t left = n * program.size(); left > 0;) {
      std::size_t const r = random() % n;
      if (next[r] == program.size())
        continue;
      device_guard const on(static_cast<int>(r));
      all[r].make(ranks[r], program, next[r]++);
      --left;
    }
    for (std::size_t r = 0; r < n; ++r) {
      device_guard const on(static_cast<int>(r));
      all[r].check();
    }
    auto const findings = simulation::of(machine).findings();
    ASSERT_TRUE(findings.empty()) << findings[0];
  }
}

// Each sends first, and so waits for a receive behind the other's send.
TEST(seeded_transfers, two_that_send_first_are_named) {
  using scheduling = simulated::scheduling;
  for (auto const how : {scheduling::seeded, scheduling::stepped}) {
    runtime machine(simulated{.devices = 2, .memory = 64_MiB, .schedule = how, .seed = how == scheduling::seeded},
                    {.check_races = true});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(2));
    std::vector<buffer> blocks;
    for (int r : {0, 1}) {
      device_guard const on(r);
      blocks.emplace_back(64), blocks.emplace_back(64);
    }
    auto const block = [&](int rank, int k) { return all_of(blocks[static_cast<std::size_t>(2 * rank + k)]); };
    for (int r : {0, 1})
      ranks[static_cast<std::size_t>(r)].send(block(r, 0), 1 - r);
    for (int r : {0, 1})
      ranks[static_cast<std::size_t>(r)].receive(block(r, 1), 1 - r);
    std::string said;
    try {
      current_stream(device(0)).synchronize();
    } catch (std::exception const& e) {
      said = e.what();
    }
    EXPECT_EQ(race_reports().size(), 1u);
    for (char const* const part : {"rank 0's part of send of 16 int32 to rank 1 (transfer_test.cpp:",
                                   "rank 1's part of receive of 16 int32 from rank 0 (transfer_test.cpp:", "a cycle"})
      EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
    ranks[0].abort();
  }
}

TEST(transfer, a_captured_exchange_moves_bytes_at_each_launch) {
  constexpr int n = 3;
  runtime own(simulated{.devices = n, .memory = 16_MiB});
  runtime_guard const here{own};
  auto ranks = communicator::create_all(first_devices(n));
  on_each(own, ranks, [&](communicator& c) {
    stream const s;
    stream_guard const on(s);
    buffer const in(400), out(400), first(400);
    graph step = graph::capture(s, [&] {
      if (c.rank() == 0)
        c.send(all_of(in), 1);
      if (c.rank() == 1)
        c.receive(all_of(first), 0);
      c.send_receive(all_of(in), (c.rank() + 1) % n, all_of(out), (c.rank() + n - 1) % n);
    });
    for (int turn = 0; turn < 3; ++turn) {
      copy(in.data(), values(int32, c.rank(), 100, turn).data(), in.size());
      step.launch(s);
      EXPECT_EQ(to_host(out.data(), 400), values(int32, (c.rank() + n - 1) % n, 100, turn)) << turn;
      if (c.rank() == 1) {
        EXPECT_EQ(to_host(first.data(), 400), values(int32, 0, 100, turn)) << turn;
      }
    }
  });
}

struct sim_transfer : sim_ranks {
  sim_transfer() : sim_ranks(3) {}
};

TEST_F(sim_transfer, a_send_completes_after_its_receiver_has_come) {
  buffer const a = on(0, 1), b = on(1, 10);
  stamp const sent = ranks_[0].send(all_of(a), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(sent.query());
  ranks_[1].receive(all_of(b), 0).synchronize();
  sent.synchronize();
  EXPECT_EQ(read(1, b), encode(int32, {1, 2, 3}));
}

TEST_F(sim_transfer, one_that_does_not_fit_is_told_and_may_retry) {
  buffer const a = on(0, 1), b = on(1, 10);
  for (bool const sender_first : {true, false}) {
    if (sender_first)
      ranks_[0].send(all_of(a), 1);
    else
      ranks_[1].receive(all_of(b), 0);
    auto const second = [&](std::int64_t count, dtype type) {
      return refusal<invalid_use>([&] {
        if (sender_first)
          ranks_[1].receive({b.data(), count, type}, 0);
        else
          ranks_[0].send_receive({a.data(), count, type}, 1, {}, 2);
      });
    };
    std::string const text = second(2, int32);
    EXPECT_NE(
        text.find(sender_first ? "rank 1 calls receive of 2 int32 from rank 0 where rank 0 called send of 3 int32 to "
                                 "rank 1"
                               : "rank 0 calls send of 2 int32 to rank 1 where rank 1 called receive of 3 int32 from "
                                 "rank 0"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("transfer_test.cpp"), std::string::npos) << text;
    EXPECT_NE(second(3, float32).find("float32"), std::string::npos);
    if (sender_first)
      ranks_[1].receive(all_of(b), 0);
    else
      ranks_[0].send(all_of(a), 1);
    EXPECT_EQ(read(1, b), encode(int32, {1, 2, 3}));
  }
}

TEST_F(sim_transfer, wrong_ranks_and_memory_are_refused) {
  buffer const a = on(0, 1), b = on(0, 10);
  auto const says = [](auto action, char const* words) {
    std::string const text = refusal<invalid_use>(action);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  communicator& c = ranks_[0];
  says([&] { c.send(all_of(a), 3); }, "rank 3 of 3 ranks");
  says([&] { c.receive(all_of(a), -1); }, "rank -1 of 3 ranks");
  says([&] { c.send(all_of(a), 0); }, "rank 0 names itself");
  says([&] { c.receive(all_of(a), 0); }, "weir::copy");
  says([&] { c.send_receive(all_of(a), 1, all_of(b), 0); }, "names itself");
  says([&] { c.send_receive(all_of(a), 7, all_of(b), 1); }, "rank 7 of 3");
  says([&] { c.send_receive(all_of(a), 1, all_of(a), 1); }, "overlaps");
  says([&] { c.send({a.data(), 4, int32}, 1); }, "holds 12 B");
  says([&] { c.receive({a.data(), -4, int32}, 1); }, "negative");
  says([&] { ranks_[1].receive(all_of(a), 0); }, "gpu:0");
  EXPECT_FALSE(c.send(all_of(a), 1).query()) << "nothing of the above has waited for it";
  c.abort();
}

// A second try works.
TEST_F(sim_transfer, a_refused_part_changes_nothing) {
  buffer const a = on(0, 1), b = on(1, 10), c = on(1, 20), d = on(0, 30);
  for (int first : {0, 1}) {
    auto const call = [&](int rank) {
      if (rank == 0)
        ranks_[0].send_receive(all_of(a), 1, all_of(d), 1);
      else
        ranks_[1].send_receive(all_of(c), 0, all_of(b), 0);
    };
    call(first);
    simulation::of(machine_).fail_call("enqueue", 1);
    EXPECT_NE(refusal<driver_error>([&] { call(1 - first); }), "");
    call(1 - first);
    simulation::of(machine_).fail_call("enqueue", 1);
    EXPECT_NE(refusal<driver_error>([&] { call(first); }), "") << "before the other has called";
  }
  EXPECT_EQ(read(1, b), encode(int32, {1, 2, 3}));
  EXPECT_EQ(read(0, d), encode(int32, {20, 21, 22}));
}

// No rank hangs.
TEST_F(sim_transfer, a_part_refused_in_its_middle_ends_all) {
  for (std::uint64_t k : {2u, 3u, 4u, 5u, 6u}) {
    buffer const a = on(0, 1), b = on(1, 10), c = on(1, 20), d = on(0, 30);
    stamp const waits = ranks_[0].send_receive(all_of(a), 1, all_of(d), 1);
    simulation::of(machine_).fail_call("enqueue", k);
    EXPECT_NE(refusal<driver_error>([&] { ranks_[1].send_receive(all_of(c), 0, all_of(b), 0); }), "") << k;
    waits.synchronize();
    current_stream(device(1)).synchronize();
    EXPECT_NE(refusal<driver_error>([&] { ranks_[0].send(all_of(a), 2); }), "") << k;
    ranks_ = communicator::create_all(first_devices(3));
  }
}

TEST_F(sim_transfer, abort_and_a_lost_device_release_waits) {
  buffer const a = on(0, 1), b = on(1, 10);
  stamp const waits = ranks_[0].send(all_of(a), 1);
  ranks_[2].abort();
  waits.synchronize();
  EXPECT_NE(refusal<driver_error>([&] { ranks_[1].receive(all_of(b), 0); }).find("rank 2 aborted"), std::string::npos);
  ranks_ = communicator::create_all(first_devices(3));
  auto const gate = machine_.get().machine().hold(1, streams::clock_of(current_stream(device(1))).handle());
  ASSERT_TRUE(gate.ok());
  stamp const also = ranks_[0].send(all_of(a), 1);
  ranks_[1].receive(all_of(b), 0);
  simulation::of(machine_).lose_device(device(1));
  also.synchronize();
  std::string const text = refusal<driver_error>([&] { ranks_[0].send(all_of(a), 1); });
  EXPECT_NE(text.find("gpu:1 is lost"), std::string::npos) << text;
}

// A rank that has made its transfers may leave; one that others wait for ends the communicator.
TEST_F(sim_transfer, only_the_two_ranks_must_stay) {
  buffer const a = on(0, 1), b = on(1, 10);
  stamp const waits = ranks_[0].send(all_of(a), 1);
  ranks_.pop_back();
  EXPECT_FALSE(waits.query());
  EXPECT_NE(refusal<invalid_use>([&] { ranks_[0].send(all_of(a), 2); }).find("rank 2's communicator is destroyed"),
            std::string::npos);
  ranks_[1].receive(all_of(b), 0);
  EXPECT_EQ(read(1, b), encode(int32, {1, 2, 3}));
  stamp const again = ranks_[0].send(all_of(a), 1);
  ranks_.pop_back();
  again.synchronize();
  EXPECT_NE(refusal<driver_error>([&] { ranks_[0].send(all_of(a), 1); }), "");
}

}  // namespace
}  // namespace weir::transfer_tests
