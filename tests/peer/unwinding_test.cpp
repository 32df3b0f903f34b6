// An exception unwinds what a rank owns in the middle of a step. The others end, wherever it was thrown.
// Threads: one for each rank, and one that ends a test that hangs.
#include <functional>
#include <future>

#include "tests/peer/ranks.h"
#include "tests/support/sanitized.h"
#include "weir/graph.h"
#include "weir/runtime.h"

namespace {

using namespace weir;
using namespace weir::test;
using namespace std::chrono_literals;

constexpr int gradients = 4;
constexpr auto most = weir::tests::sanitized ? 10s : 1s;

struct bug {};

// Where a rank throws, in its third step.
enum class place {
  before_first,
  between,
  after_own,
  after_step,
  in_group,
  before_group_member,
  in_capture,
  before_launch,
  after_launch,
  at_barrier
};
constexpr place all_places[] = {place::before_first, place::between,  place::after_own,           place::after_step,
                                place::in_group,     place::in_group, place::before_group_member, place::at_barrier};

struct shape {
  place at;
  bool registered = false, owns = false;  // owns: the communicator ends as well
  int rank = 1;                           // that throws
};

void grouped(communicator& c, buffer const& x, bool fails, place at) {
  collective_group g(c);
  if (fails && at == place::before_group_member)
    throw bug();
  g.all_reduce({x.data(), 1, int32});
  if (fails && at == place::in_group)
    throw bug();
  g.all_reduce({x.data<std::byte>() + 4, 1, int32});
  g.end();
}

// Steps until the communicator has failed, or this rank throws.
void train(communicator& c, shape const& how) {
  stream const s;
  stream_guard const here(s);
  gradient_buckets b(c, {.bucket_bytes = 4096, .registered = how.registered});
  for (int i = 0; i < gradients; ++i)
    b.add("w" + std::to_string(i), 1000);
  b.build(s);
  buffer const x = to_device(encode(int32, {1, 2}));
  std::optional<graph> captured;
  for (int step = 0; c.failure().empty(); ++step) {
    bool const fails = c.rank() == how.rank && step == 2;
    auto const here_is = [&](place p) { return fails && how.at == p; };
    if (here_is(place::before_first))
      throw bug();
    auto const pass = [&] {
      for (int i = gradients - 1; i >= 0; --i) {
        b.mark_ready(i, s);
        if (i == 2 && (here_is(place::between) || here_is(place::in_capture)))
          throw bug();
      }
      if (here_is(place::after_own))
        throw bug();
      b.finish(s);
    };
    bool const launches = how.at == place::before_launch || how.at == place::after_launch;
    if (how.at == place::in_capture)
      graph::capture(s, pass).launch();
    else if (!launches)
      pass();
    else if (!captured)
      captured = graph::capture(s, pass);
    if (here_is(place::before_launch))
      throw bug();
    if (launches)
      captured->launch();
    if (here_is(place::after_launch))
      throw bug();
    if (how.at == place::in_group || how.at == place::before_group_member)
      grouped(c, x, fails, how.at);
    if (here_is(place::after_step))
      s.synchronize();
    if (here_is(place::after_step) || here_is(place::at_barrier))
      throw bug();
    if (how.at == place::at_barrier)
      c.barrier();
    s.synchronize();
  }
}

// Returns: how long the ranks took to end, from the exception on.
std::chrono::milliseconds ends_after(int ranks, shape const& how, std::vector<std::string>& said) {
  using clock = std::chrono::steady_clock;
  auto all = communicator::create_all(first_devices(ranks));
  runtime& machine = runtime::current();
  said.assign(all.size(), "");
  std::promise<clock::time_point> thrown;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < all.size(); ++r)
    threads.emplace_back([&, r] {
      runtime_guard const in(machine);
      device_guard const on(all[r].device());
      try {
        if (how.owns && static_cast<int>(r) == how.rank) {
          communicator mine = std::move(all[r]);
          train(mine, how);
        } else {
          train(all[r], how);
          said[r] = all[r].failure();
        }
      } catch (bug const&) {
        thrown.set_value(clock::now());
      } catch (std::exception const& e) {
        said[r] = e.what();
      }
    });
  auto const from = thrown.get_future().get();
  std::promise<void> over;
  std::thread frees([&, until = over.get_future()] {  // a rank that hangs
    if (until.wait_for(10 * most) == std::future_status::timeout)
      all[0].abort();
  });
  for (auto& t : threads)
    t.join();
  auto const took = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - from);
  over.set_value();
  frees.join();
  return took;
}

// A rank is told of the one that threw, or of one that was refused, and so threw, because of it.
bool leads_to(int thrower, int rank, std::vector<std::string> const& said) {
  auto const names = [&](int of, int other) {
    return said[static_cast<std::size_t>(of)].find("rank " + std::to_string(other)) != std::string::npos;
  };
  if (names(rank, thrower))
    return true;
  for (int between = 0; between < static_cast<int>(said.size()); ++between) {
    if (between != rank && between != thrower && names(rank, between) && names(between, thrower))
      return true;
  }
  return false;
}

void expect_end(shape const& how) {
  int const ranks = std::min(3, device_count());
  std::vector<std::string> said;
  auto const took = ends_after(ranks, how, said);
  std::string const where = "place " + std::to_string(static_cast<int>(how.at)) + ", registered " +
                            std::to_string(how.registered) + ", owns " + std::to_string(how.owns) + ", rank " +
                            std::to_string(how.rank);
  EXPECT_LE(took, most) << where;
  for (int r = 0; r < ranks; ++r) {
    if (r == how.rank)
      continue;
    EXPECT_TRUE(leads_to(how.rank, r, said)) << where << ": " << said[static_cast<std::size_t>(r)];
  }
}

// The communicator lives outside of the scope that the exception unwinds.
TEST(unwinding, frees_every_rank_wherever_it_began) {
  if (device_count() < 2)
    GTEST_SKIP() << "one device";
  for (int const rank : {0, 1})
    for (place const at : all_places)
      expect_end({.at = at, .rank = rank});
}
TEST(unwinding, frees_ranks_whose_buckets_are_registered) {
  if (device_count() < 2)
    GTEST_SKIP() << "one device";
  for (place const at : all_places)
    expect_end({at, true});
}
TEST(unwinding, of_a_rank_with_its_communicator_frees_all) {
  if (device_count() < 2)
    GTEST_SKIP() << "one device";
  for (int const rank : {0, 1})
    for (place const at : all_places)
      expect_end({.at = at, .owns = true, .rank = rank});
}
// NCCL captures a collective only with one process for each GPU.
TEST(unwinding, of_a_captured_step_frees_every_rank) {
  if (!runtime::current().is_simulated())
    GTEST_SKIP() << "there are GPUs";
  for (place const at : {place::in_capture, place::before_launch, place::after_launch})
    for (bool const owns : {false, true})
      expect_end({at, false, owns});
}
TEST(unwinding, of_all_behind_launches_leaves_the_communicator) {
  if (!runtime::current().is_simulated())
    GTEST_SKIP() << "there are GPUs";
  auto all = communicator::create_all(first_devices(std::min(3, device_count())));
  on_each(runtime::current(), all, [](communicator& c) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      try {
        stream const s;
        stream_guard const here(s);
        buffer const x = to_device(encode(int32, {1, 1}));
        gradient_buckets b(c, {.bucket_bytes = 4096});
        b.add("w", 1000);
        b.build(s);
        auto step = graph::capture(s, [&] {
          b.mark_ready(0, s);
          b.finish(s);
          c.all_reduce({x.data(), 2, int32});
        });
        for (int i = 0; i < 3; ++i) {
          step.launch();
          s.synchronize();
        }
        throw bug();
      } catch (bug const&) {}
    }
    c.barrier();
    EXPECT_EQ(c.failure(), "");
  });
}
// In a catch block no exception is under way.
TEST(unwinding, a_communicator_gone_between_launches_frees_all) {
  if (!runtime::current().is_simulated() || device_count() < 2)
    GTEST_SKIP() << "there are GPUs, or one device";
  auto all = communicator::create_all(first_devices(2));
  on_each(runtime::current(), all, [](communicator& of_rank) {
    std::optional<communicator> c(std::move(of_rank));
    stream const s;
    stream_guard const here(s);
    buffer const x = to_device(encode(int32, {1}));
    auto step = graph::capture(s, [&] { c->all_reduce({x.data(), 1, int32}); });
    step.launch();
    s.synchronize();
    if (c->rank() == 1) {
      c.reset();
      return;
    }
    std::string said;
    while (said.empty()) {
      said = refusal<error>([&] {
        step.launch();
        s.synchronize();
      });
      // A launch that the other rank's end follows is under way.
      if (said.empty())
        said = c->failure();
    }
    EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
    EXPECT_NE(refusal<driver_error>([&] { step.launch(); }).find("graph::launch: rank 0 of 2: rank 1"),
              std::string::npos);
  });
}
// One rank captures both collectives in one graph, the other each in its own: their launches are as many collectives.
TEST(unwinding, of_all_behind_graphs_cut_otherwise_ends_nobody) {
  if (!runtime::current().is_simulated() || device_count() < 2)
    GTEST_SKIP() << "there are GPUs, or one device";
  auto all = communicator::create_all(first_devices(2));
  on_each(runtime::current(), all, [](communicator& c) {
    stream const s;
    stream_guard const here(s);
    buffer const x = to_device(encode(int32, {1}));
    auto const reduce = [&] { c.all_reduce({x.data(), 1, int32}); };
    std::vector<graph> steps;
    if (c.rank() == 0)
      steps.push_back(graph::capture(s, [&] { reduce(), reduce(); }));
    else
      steps.push_back(graph::capture(s, reduce)), steps.push_back(graph::capture(s, reduce));
    for (int turn = 0; turn < 20; ++turn) {
      for (graph& step : steps)
        step.launch();
      s.synchronize();
      try {
        collective_group const g(c);
        throw bug();
      } catch (bug const&) {}
    }
    c.barrier();
    EXPECT_EQ(c.failure(), "");
  });
}
TEST(unwinding, a_runtime_that_ends_frees_a_rank_in_a_launch) {
  std::optional<runtime> r(std::in_place, simulated{.devices = 2});
  std::vector<communicator> all;
  {
    runtime_guard const in(*r);
    all = communicator::create_all(first_devices(2));
    std::vector<graph> steps;
    for (communicator& c : all) {
      device_guard const on(c.device());
      stream const s;
      stream_guard const here(s);
      buffer const x(4);
      steps.push_back(graph::capture(s, [&] { c.all_reduce({x.data(), 1, int32}); }));
      if (c.rank() == 0)
        steps.back().launch(s);
    }
  }
  r.reset();
  EXPECT_NE(all[1].failure().find("aborted this communicator"), std::string::npos) << all[1].failure();
}
// NCCL would read what it has freed.
TEST(unwinding, a_graph_of_communicators_that_ended_is_refused) {
  std::optional<std::vector<communicator>> all(communicator::create_all(first_devices(1)));
  stream const s;
  stream_guard const here(s);
  buffer const x = to_device(encode(int32, {1}));
  auto step = graph::capture(s, [&] { (*all)[0].all_reduce({x.data(), 1, int32}); });
  step.launch();
  s.synchronize();
  all.reset();
  EXPECT_NE(refusal<invalid_use>([&] { step.launch(); }).find("of rank 0, whose communicator has ended"),
            std::string::npos);
}

// The same exception on all ranks, as the end of the data is: no rank waits for one that has gone.
TEST(unwinding, of_all_ranks_leaves_the_communicator) {
  int const n = std::min(3, device_count());
  auto all = communicator::create_all(first_devices(n));
  on_each(runtime::current(), all, [&](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()) + 5u);
    for (int round = 1; round <= 40; ++round) {
      buffer const x = to_device(encode(int32, {1, 1}));
      try {
        gradient_buckets b(c, {.bucket_bytes = 4096});
        b.add("w", 100);
        b.build();
        for (int step = 0; step < round % 3; ++step)
          b.mark_ready(0, current_stream()), b.finish(current_stream());
        synchronize();
        pause_at_random(random);
        if (round % 2)
          throw bug();
        grouped(c, x, true, place::in_group);
      } catch (bug const&) {
        pause_at_random(random);
      }
      if (round % 4 == 0)
        c.barrier();
      c.all_reduce({x.data(), 1, int32});
      if (round % 4 == 1)
        c.barrier();  // does not wait for the device
      ASSERT_EQ(to_host(x.data(), 4), encode(int32, {static_cast<double>(n)}));
    }
  });
}

class unwound_sim : public sim_ranks {
 protected:
  unwound_sim() : sim_ranks(3) {}
  void unwind(int rank) {
    try {
      collective_group const g(ranks_[static_cast<std::size_t>(rank)]);
      throw bug();
    } catch (bug const&) {}
  }
};

// A rank that repeats the call before another waits for it has done no harm.
TEST_F(unwound_sim, a_rank_that_calls_again_is_in_time) {
  std::vector<buffer> x;
  for (int r = 0; r < 3; ++r)
    x.push_back(on(r, r));
  for (int round = 0; round < 3; ++round) {
    unwind(1);
    for (std::size_t const r : {1u, 0u, 2u})
      ranks_[r].all_reduce({x[r].data(), 3, int32});
  }
  EXPECT_EQ(ranks_[0].failure(), "");
}

// As many exceptions ended owners of the rank that called first, but none of the rank that called next.
TEST_F(unwound_sim, a_waiting_rank_without_an_exception_ends_all) {
  std::vector<buffer> x;
  for (int r = 0; r < 3; ++r)
    x.push_back(on(r, r));
  unwind(2), unwind(0);
  ranks_[0].all_reduce({x[0].data(), 3, int32});
  EXPECT_EQ(ranks_[0].failure(), "");
  EXPECT_NE(refusal<driver_error>([&] {
              ranks_[1].all_reduce({x[1].data(), 3, int32});
            }).find("rank 2 aborted"),
            std::string::npos);
}

// Only the two ranks of a transfer need each other.
TEST_F(unwound_sim, a_transfer_that_waits_for_the_rank_ends) {
  buffer const a = on(0, 1), b = on(2, 1);
  unwind(1);
  ranks_[0].send({a.data(), 3, int32}, 2), ranks_[2].receive({b.data(), 3, int32}, 0);
  EXPECT_EQ(ranks_[0].failure(), "");
  EXPECT_NE(refusal<driver_error>([&] {
              ranks_[0].receive({a.data(), 3, int32}, 1);
            }).find("rank 1 aborted"),
            std::string::npos);
  EXPECT_NE(ranks_[2].failure().find("an exception ended its collective_group"), std::string::npos);
}

// A destructor of the program may make and end buckets while another exception is under way.
TEST_F(unwound_sim, an_owner_made_while_unwinding_ends_no_rank) {
  struct saves_at_the_end {
    communicator& c;
    ~saves_at_the_end() { collective_group const g(c); }
  };
  buffer const a = on(0, 1);
  ranks_[0].all_reduce({a.data(), 3, int32});
  try {
    saves_at_the_end const last{ranks_[1]};
    throw bug();
  } catch (bug const&) {}
  EXPECT_EQ(ranks_[0].failure(), "");
}

}  // namespace
