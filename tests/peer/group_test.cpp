// Groups of collectives on the machine at hand, and cases that only a simulated machine can arrange.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h.
#include <numeric>

#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "tests/support/seeds.h"
#include "weir/graph.h"
#include "weir/sim.h"

namespace weir::group_tests {
namespace {

using namespace test;
using scheduling = simulated::scheduling;

constexpr int kinds = 8;
struct drawn {
  int kind, root;
  dtype type;
  std::int64_t count;  // of a part
};

std::vector<drawn> draw(std::uint64_t seed, int ranks) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<drawn> all(1 + random() % 12);
  for (drawn& d : all)
    d = {static_cast<int>(random() % kinds), static_cast<int>(random() % static_cast<unsigned>(ranks)),
         reducible_types[random() % std::size(reducible_types)], static_cast<std::int64_t>(random() % 300)};
  return all;
}

// Memory of one member on one rank, with values of that rank.
struct operands {
  buffer in, out;
  operands(drawn const& d, int rank, int ranks) {
    auto const values = [&](int salt) {
      return to_device(
          encode(d.type, values_of(d.count * ranks, [&](std::int64_t i) { return brought(d.type, rank + salt, i); })));
    };
    in = values(0), out = values(1);
  }
};

// To a communicator or to a group. A ring of kind 7 sends to the next rank and receives from the one before.
void ask(auto& to, drawn const& d, operands const& o, int rank, int ranks) {
  device_span const all_in{o.in.data(), d.count * ranks, d.type}, in{o.in.data(), d.count, d.type};
  device_span const all_out{o.out.data(), d.count * ranks, d.type}, out{o.out.data(), d.count, d.type};
  switch (d.kind) {
    case 0: return (void)to.all_reduce(all_out, reduce_op::sum);
    case 1: return (void)to.broadcast(out, d.root);
    case 2: return (void)to.all_gather(all_out, in);
    case 3: return (void)to.reduce_scatter(out, all_in, reduce_op::max);
    case 4: return (void)to.scatter(out, all_in, d.root);
    case 5: return (void)to.gather(all_out, in, d.root);
    case 6: return (void)to.all_to_all(all_out, all_in);
    default: break;
  }
  if (ranks == 1)
    return;
  int const next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  if constexpr (requires { to.end(); })
    to.send(in, next), to.receive(out, last);
  else
    to.send_receive(in, next, out, last);
}

std::vector<elements> play(communicator& c, std::vector<drawn> const& all, bool grouped) {
  int const rank = c.rank(), ranks = c.size();
  std::vector<operands> memory;
  for (drawn const& d : all)
    memory.emplace_back(d, rank, ranks);
  collective_group g(c);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (grouped)
      ask(g, all[i], memory[i], rank, ranks);
    else
      ask(c, all[i], memory[i], rank, ranks);
  }
  if (grouped)
    g.end();
  EXPECT_EQ(g.size(), 0);
  std::vector<elements> results;
  for (operands const& o : memory)
    results.push_back(to_host(o.in.data(), o.in.size())), results.push_back(to_host(o.out.data(), o.out.size()));
  return results;
}

void compare_with_singles(runtime& machine, int n, std::uint64_t seed) {
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed) + ", ranks: " + std::to_string(n));
  auto const program = draw(seed, n);
  std::vector<std::vector<elements>> got[2];
  auto ranks = communicator::create_all(first_devices(n));
  for (bool const grouped : {false, true}) {
    auto& its = got[grouped];
    its.resize(ranks.size());
    on_each(machine, ranks,
            [&](communicator& c) { its[static_cast<std::size_t>(c.rank())] = play(c, program, grouped); });
  }
  EXPECT_TRUE(got[0] == got[1]);
}

// Every kind, type and count at once; a group has the bits of the single calls.
TEST(group, gives_the_bits_of_single_calls) {
  for (std::uint64_t const seed : tests::seeds("groups", 20))
    for (int n = 1; n <= std::min(4, device_count()); ++n)
      compare_with_singles(runtime::current(), n, seed);
}

TEST(simulated_group, gives_the_bits_of_single_calls_on_8_devices) {
  for (std::uint64_t const seed : tests::seeds("groups of 8", 10)) {
    for (int const n : {1, 2, 4, 8}) {
      runtime machine(simulated{.devices = 8, .memory = 16_MiB});
      runtime_guard const in(machine);
      compare_with_singles(machine, n, seed);
    }
  }
}

class sim_group : public sim_ranks {
 protected:
  sim_group() : sim_ranks(2) {}
  buffer a_[2]{on(0, 1), on(0, 2)}, b_[2]{on(1, 10), on(1, 20)};
  buffer const& of(int rank, int i) { return (rank ? b_ : a_)[i]; }
  device_span span(int rank, int i) { return {of(rank, i).data(), 3, int32}; }
  collective_group two(int rank) {
    collective_group g(ranks_[static_cast<std::size_t>(rank)]);
    for (int i : {0, 1})
      g.all_reduce(span(rank, i));
    return g;
  }
  void expect_sums() {
    for (int rank : {0, 1}) {
      EXPECT_EQ(read(rank, of(rank, 0)), encode(int32, {11, 13, 15}));
      EXPECT_EQ(read(rank, of(rank, 1)), encode(int32, {22, 24, 26}));
    }
  }
};

// An exception leaves the first: a refused member and a group without end() change nothing.
TEST_F(sim_group, that_does_not_end_enqueues_nothing) {
  try {
    collective_group g = two(0);
    g.all_gather(span(0, 0), span(0, 1));
    FAIL() << "parts of 3 for two ranks do not make 3";
  } catch (invalid_use const&) {}
  for (int rank : {0, 1})
    two(rank).end();
  expect_sums();
}

// No rank may see a part of a group whose last member is refused.
TEST_F(sim_group, with_one_bad_member_enqueues_none_and_repeats) {
  two(0).end();
  collective_group g = two(1);
  float elsewhere[3]{};
  collective_group bad = two(1);
  bad.all_reduce({elsewhere, 3, int32});
  EXPECT_NE(refusal<invalid_use>([&] { bad.end(); }), "");
  EXPECT_EQ(bad.size(), 3);
  g.end();
  expect_sums();
}

// Between ranks a group of two differs from two calls, from another size and from another order.
TEST_F(sim_group, of_a_rank_that_differs_is_told_and_may_retry) {
  two(0).end();
  std::string const single = refusal<invalid_use>([&] { ranks_[1].all_reduce(span(1, 0)); });
  EXPECT_NE(single.find("rank 1 calls all_reduce of 3 int32 (sum) where rank 0 called all_reduce of 3 int32 (sum), "
                        "member 1 of a group of 2 at "),
            std::string::npos)
      << single;
  collective_group other(ranks_[1]);
  other.all_reduce(span(1, 0));
  other.all_reduce(span(1, 1), reduce_op::max);
  std::string const last = refusal<invalid_use>([&] { other.end(); });
  EXPECT_NE(last.find("(max), member 2 of a group of 2 where rank 0 called all_reduce of 3 int32 (sum), member 2"),
            std::string::npos)
      << last;
  two(1).end();
  expect_sums();
}

TEST_F(sim_group, whose_members_share_written_memory_is_refused) {
  collective_group g = two(0);
  g.broadcast({of(0, 1).data(), 1, int32}, 0);
  std::string const text = refusal<invalid_use>([&] { g.end(); });
  EXPECT_NE(text.find("overlaps"), std::string::npos) << text;
  EXPECT_NE(text.find("broadcast of 1 int32"), std::string::npos) << text;
}

// The second is open while the first is filled: the one that ends first comes first.
TEST_F(sim_group, may_be_empty_and_two_may_be_open) {
  collective_group(ranks_[0]).end();
  collective_group first = two(0), second(ranks_[0]);
  second.broadcast(span(0, 0), 1);
  second.end();
  first.end();
  ranks_[1].broadcast(span(1, 0), 1);
  two(1).end();
  EXPECT_EQ(read(0, of(0, 0)), encode(int32, {20, 22, 24}));
  EXPECT_EQ(read(0, of(0, 1)), encode(int32, {22, 24, 26}));
}

// Each member's block is freed while the group waits for rank 1, on another stream than its home.
TEST_F(sim_group, marks_the_memory_of_every_member) {
  std::vector<void*> freed;
  device_guard const at(0);
  stream const side;
  std::vector<buffer> ours, theirs;
  for (int i = 0; i < 4; ++i)
    ours.push_back(on(0, i)), theirs.push_back(on(1, 10 * i));
  auto const end = [&](int rank, std::vector<buffer> const& all) {
    collective_group g(ranks_[static_cast<std::size_t>(rank)]);
    for (buffer const& b : all)
      g.all_reduce({b.data(), 3, int32});
    g.end();
  };
  {
    stream_guard const in(side);
    end(0, ours);
  }
  for (buffer const& b : ours)
    freed.push_back(b.data());
  ours.clear();
  for (int i = 0; i < 100; ++i) {
    ours.emplace_back(3 * sizeof(std::int32_t));
    EXPECT_EQ(std::count(freed.begin(), freed.end(), ours.back().data()), 0);
  }
  end(1, theirs);
  EXPECT_EQ(read(1, theirs[3]), encode(int32, {33, 35, 37}));
}

TEST_F(sim_group, after_abort_throws_and_holds_no_stream) {
  stamp const waits = two(0).end();
  ranks_[1].abort();
  waits.synchronize();
  EXPECT_NE(refusal<driver_error>([&] { two(1).end(); }).find("rank 1 aborted"), std::string::npos);
}

// A graph makes the group's exchange at each launch.
TEST(simulated_group, captured_runs_at_each_launch) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(2));
  on_each(machine, ranks, [&](communicator& c) {
    stream const own(c.device());
    stream_guard const on(own);
    buffer const x = to_device(encode(int32, {1})), y = to_device(encode(int32, {2}));
    graph step = graph::capture(own, [&] {
      collective_group g(c);
      g.all_reduce({x.data(), 1, int32});
      g.all_reduce({y.data(), 1, int32});
      g.end();
    });
    for (int i = 0; i < 3; ++i)
      step.launch();
    EXPECT_EQ(to_host(x.data(), 4), encode(int32, {8}));
    EXPECT_EQ(to_host(y.data(), 4), encode(int32, {16}));
  });
}

}  // namespace
}  // namespace weir::group_tests
