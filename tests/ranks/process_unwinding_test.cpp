// An exception unwinds what a rank of several processes owns; its communicator lives on. The others end by its name.
// Threads: one for each rank.
#include <future>

#include "runtime/base/sync.h"
#include "tests/ranks/rank_processes.h"
#include "tests/ranks/rank_threads.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "weir/graph.h"

namespace {

using namespace weir;
using namespace weir::test;
using namespace std::chrono_literals;
using clock_of_host = std::chrono::steady_clock;

constexpr auto most = weir::tests::sanitized ? 10s : 1s;

WEIR_PLAYS_RANK_ROLES()

struct bug {};
enum class place { before_first, between, after_step, in_group, before_barrier, before_transfer };

void step(communicator& c, place at, bool fails) {
  gradient_buckets b(c, {.bucket_bytes = 4096});
  for (int i = 0; i < 3; ++i)
    b.add("w" + std::to_string(i), 1000);
  b.build();
  for (int turn = 0; turn < 2; ++turn) {
    bool const here = fails && turn == (at == place::after_step ? 0 : 1);
    if (here && at == place::before_first)
      throw bug();
    for (int i = 2; i >= 0; --i) {
      b.mark_ready(i, current_stream());
      if (here && at == place::between)
        throw bug();
    }
    b.finish(current_stream());
    current_stream().synchronize();
    if (here && at == place::after_step)
      throw bug();
  }
  buffer const x = to_device(encode(int32, {1, 2}));
  if (at == place::in_group) {
    collective_group g(c);
    g.all_reduce({x.data(), 1, int32});
    if (fails)
      throw bug();
    g.end();
  }
  if (fails)
    throw bug();
  if (at == place::before_barrier)
    c.barrier();
  if (at == place::before_transfer && c.rank() == 0)
    c.receive({x.data(), 1, int32}, 1);
  current_stream().synchronize();
}

// Rank 1 stays until the others have ended.
TEST(process_unwinding, of_one_rank_frees_all_by_its_name) {
  for (place const at : {place::before_first, place::between, place::after_step, place::in_group, place::before_barrier,
                         place::before_transfer}) {
    std::promise<void> others_over;
    auto const over = others_over.get_future().share();
    base::atomic<int> left{2};
    std::vector<std::string> said(3);
    base::atomic<std::int64_t> thrown_ns{0};
    std::int64_t last_ns[3] = {};
    as_ranks(3,
             [&](communicator& c) {
               auto const rank = static_cast<std::size_t>(c.rank());
               try {
                 step(c, at, rank == 1);
                 for (auto const end = clock_of_host::now() + 20s; c.failure().empty() && clock_of_host::now() < end;)
                   std::this_thread::sleep_for(1ms);
               } catch (bug const&) {
                 thrown_ns.store(base::now_ns());
                 over.wait_for(20s);
               } catch (error const&) {}
               said[rank] = c.failure();
               last_ns[rank] = base::now_ns();
               if (rank != 1 && left.fetch_sub(1) == 1)
                 others_over.set_value();
             },
             {.start = 20s});
    for (std::size_t const r : {0u, 2u}) {
      EXPECT_NE(said[r].find("rank 1"), std::string::npos) << static_cast<int>(at) << ": " << said[r];
      EXPECT_NE(said[r].find("xception"), std::string::npos) << static_cast<int>(at) << ": " << said[r];
      EXPECT_LE(last_ns[r] - thrown_ns.load(), std::chrono::nanoseconds(most).count()) << static_cast<int>(at);
    }
  }
}

TEST(process_unwinding, of_all_ranks_leaves_the_communicator) {
  as_ranks(3, [](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()) + 3u);
    for (int round = 0; round < 30; ++round) {
      try {
        step(c, round % 2 ? place::in_group : place::after_step, true);
      } catch (bug const&) {
        pause_at_random(random);
      }
      if (round % 3 == 0)
        c.barrier();
      buffer const x = to_device(encode(int32, {1}));
      c.all_reduce({x.data(), 1, int32});
      ASSERT_EQ(to_host(x.data(), 4), encode(int32, {3}));
    }
  });
}

// Its end waits for a collective that the other never calls: the other waits for it.
TEST(process_unwinding, of_a_communicator_in_a_call_frees_all) {
  as_ranks(2, [](communicator& c) {
    int const rank = c.rank();
    std::string said;
    try {
      communicator mine = std::move(c);
      buffer const x = to_device(encode(int32, {1}));
      if (rank == 1) {
        mine.all_reduce({x.data(), 1, int32});
        throw bug();
      }
      mine.barrier(10s);
    } catch (bug const&) {
      return;
    } catch (error const& e) {
      said = e.what();
    }
    EXPECT_NE(said.find("rank 1 gave up: an exception ended its communicator"), std::string::npos) << said;
  });
}

// The watch's thread hears of the exception while this rank leaves, and has given its counts away.
TEST(process_unwinding, heard_while_a_rank_leaves_ends_nobody) {
  for (int round = 0; round < 40; ++round) {
    as_ranks(2, [round](communicator& c) {
      std::mt19937 random(static_cast<unsigned>(2 * round + c.rank()));
      communicator mine = std::move(c);
      for (int i = 0; i < 3; ++i) {
        try {
          collective_group const g(mine);
          throw bug();
        } catch (bug const&) {}
      }
      pause_at_random(random);
    });
  }
}

// It has called since, and the other has heard of it: what came before is no reason to end.
TEST(process_unwinding, a_rank_that_calls_again_is_in_time) {
  base::atomic<int> called{0};
  as_ranks(2, [&](communicator& c) {
    buffer const x = to_device(encode(int32, {1}));
    for (int round = 1; round <= 2; ++round) {
      if (c.rank() == 1) {
        try {
          collective_group const g(c);
          throw bug();
        } catch (bug const&) {}
        c.all_reduce({x.data(), 1, int32});
        called.store(round);
      }
      while (called.load() < round)
        std::this_thread::yield();
      if (c.rank() == 0)
        std::this_thread::sleep_for(500ms);
      c.barrier();
      if (c.rank() == 0)
        c.all_reduce({x.data(), 1, int32});
      current_stream().synchronize();
      c.barrier();
    }
    EXPECT_EQ(c.failure(), "");
  });
}

// One rank for each process. Rank 1 throws in its third step, and keeps its communicator.
WEIR_RANK_ROLE(throws_in_a_step) {
  bool const registered = tests::number_from_environment("WEIR_TEST_REGISTERED", 0) != 0,
             captured = tests::number_from_environment("WEIR_TEST_CAPTURED", 0) != 0;
  auto c = communicator::from_environment({.start = 60s});
  auto last = clock_of_host::now();
  try {
    stream const s;
    stream_guard const here(s);
    gradient_buckets b(c, {.bucket_bytes = 4096, .registered = registered});
    for (int i = 0; i < 4; ++i)
      b.add("w" + std::to_string(i), 1000);
    b.build(s);
    int turn = 0;
    auto const pass = [&] {
      for (int i = 3; i >= 0; --i) {
        b.mark_ready(i, s);
        if (c.rank() == 1 && turn == 2 && i == 2)
          throw bug();
      }
      b.finish(s);
    };
    for (; c.failure().empty(); ++turn, last = clock_of_host::now()) {
      if (captured)
        graph::capture(s, pass).launch();
      else
        pass();
      s.synchronize();
    }
  } catch (bug const&) {
    std::this_thread::sleep_for(3s);
    return 0;
  } catch (std::exception const& e) {
    std::printf("it threw %s\n", e.what());
  }
  auto const took = std::chrono::duration_cast<std::chrono::milliseconds>(clock_of_host::now() - last);
  std::printf("failure: %s, after %d ms\n", c.failure().c_str(), static_cast<int>(took.count()));
  bool const named =
      c.failure().find("rank 1") != std::string::npos && c.failure().find("an exception ended") != std::string::npos;
  return named && took <= most ? 3 : 4;
}

// Both ranks throw behind launches that are complete, and go on with their communicator. One leaves then, and the
// other launches once more.
WEIR_RANK_ROLE(throws_behind_launches) {
  std::optional c(communicator::from_environment({.start = 60s}));
  stream const s;
  stream_guard const here(s);
  buffer const x = to_device(encode(int32, {1}));
  auto step = graph::capture(s, [&] { c->all_reduce({x.data(), 1, int32}); });
  try {
    collective_group const g(*c);
    for (int i = 0; i < 3; ++i)
      step.launch(), s.synchronize();
    throw bug();
  } catch (bug const&) {}
  c->barrier(10s);
  step.launch();
  s.synchronize();
  if (to_host(x.data(), 4) != encode(int32, {16}) || !c->failure().empty())
    return 4;
  if (c->rank() == 1) {
    c.reset();
    std::this_thread::sleep_for(3s);
    return 3;
  }
  std::string said;
  auto const began = clock_of_host::now();
  while (said.empty()) {
    try {
      step.launch();
      s.synchronize();
    } catch (error const& e) {
      said = e.what();
    }
  }
  std::printf("%s\n", said.c_str());
  bool const named = said.find("rank 1 has destroyed its communicator") != std::string::npos;
  return named && clock_of_host::now() - began <= most + 2s ? 3 : 5;
}

TEST(process_unwinding, behind_launches_leaves_the_communicator) {
  if (runtime::current().is_simulated())
    GTEST_SKIP() << "simulated processes capture no collectives";
  rank_processes all("throws_behind_launches", 2, {}, rank_processes::machine::this_one);
  for (int r = 0; r < 2; ++r) {
    auto const end = all.end_of(r, 30s);
    EXPECT_EQ(end.status, 3) << end.said;
  }
}

TEST(process_unwinding, of_a_process_frees_the_other) {
  bool const on_gpus = !runtime::current().is_simulated();
  for (bool const registered : {false, true}) {
    for (bool const captured : {false, true}) {
      if (captured && !on_gpus)
        continue;  // refused between simulated processes
      rank_processes all(
          "throws_in_a_step", 2,
          {"WEIR_TEST_REGISTERED=" + std::to_string(registered), "WEIR_TEST_CAPTURED=" + std::to_string(captured)},
          rank_processes::machine::this_one);
      auto const waits = all.end_of(0, 20s), threw = all.end_of(1, 20s);
      EXPECT_EQ(waits.status, 3) << "registered " << registered << ", captured " << captured << ": " << waits.said;
      EXPECT_EQ(threw.status, 0) << "registered " << registered << ", captured " << captured << ": " << threw.said;
    }
  }
}

}  // namespace
