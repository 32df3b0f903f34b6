// A rank is killed or stopped before its k-th collective. The others name it, throw, and end with another status.
// They resume with the program that starts again.
// Threads: one; each rank is a process.
#include <cstdio>
#include <optional>
#include <thread>

#include "tests/peer/ranks.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/seeds.h"

namespace {

using namespace weir;
using namespace weir::test;
using namespace std::chrono_literals;
using tests::number_from_environment;

constexpr int rounds = 5, named = 3;  // an exit status

// Each round is an all_reduce, and an exchange with the ranks beside this one; every second one is waited for.
WEIR_RANK_ROLE(adds_up) {
  auto const victim = static_cast<int>(number_from_environment("WEIR_TEST_VICTIM", 99));
  auto const fatal = static_cast<int>(number_from_environment("WEIR_TEST_FATAL", 0));
  auto const with = static_cast<int>(number_from_environment("WEIR_TEST_SIGNAL", SIGKILL));
  auto const silence = std::chrono::milliseconds(number_from_environment("WEIR_TEST_SILENCE_MS", 10'000));
  try {
    // Others may still create theirs when a rank is killed at its first collective.
    auto c = communicator::from_environment({.start = 30s, .silence = silence});
    buffer const b = to_device(encode(int32, {1, 2, 3})), got = to_device(encode(int32, {1, 2, 3}));
    for (int k = 1; k <= rounds; ++k) {
      if (c.rank() == victim && k == fatal)
        ::kill(::getpid(), with);
      auto done = c.all_reduce({b.data(), 3, int32});
      if (c.size() > 1)
        done = c.send_receive({b.data(), 3, int32}, (c.rank() + 1) % c.size(), {got.data(), 3, int32},
                              (c.rank() + c.size() - 1) % c.size());
      if (k % 2)
        done.synchronize();
    }
    current_stream().synchronize();
    c.barrier(30s);
    std::int32_t by = 1;
    for (int k = 0; k < rounds; ++k)
      by *= c.size();
    EXPECT_EQ(to_host(b.data(), b.size()), encode(int32, {1. * by, 2. * by, 3. * by}));
    EXPECT_TRUE(c.size() == 1 || to_host(got.data(), got.size()) == to_host(b.data(), b.size()));
    return 0;
  } catch (driver_error const& e) {
    std::printf("%s\n", e.what());
    return named;
  }
}

// A program that returns as soon as a rank has failed, and whose communicator lives until its exit handlers run.
// The watch's thread may then still end NCCL's communicator.
WEIR_RANK_ROLE(exits_when_one_has_failed) {
  static std::optional<communicator> c;
  try {
    c.emplace(communicator::from_environment({.start = 30s}));
    buffer const b = to_device(encode(int32, {1, 2, 3}));
    for (int k = 0; c->failure().empty(); ++k) {
      if (c->rank() == 1 && k == 4)
        ::kill(::getpid(), SIGKILL);
      c->all_reduce({b.data(), 3, int32});
      current_stream().synchronize();
    }
  } catch (driver_error const& e) {
    std::printf("%s\n", e.what());
  }
  while (c && c->failure().empty())
    std::this_thread::sleep_for(100us);
  std::fflush(nullptr);
  std::exit(named);
}

TEST(ranks, may_exit_at_once_when_one_is_killed) {
  for (int round = 0; round < 4; ++round) {
    rank_processes all("exits_when_one_has_failed", 2, {}, rank_processes::machine::this_one);
    EXPECT_EQ(all.end_of(1).signal, SIGKILL);
    auto const e = all.end_of(0);
    EXPECT_EQ(e.status, named) << "ended by signal " << e.signal << ": " << e.said;
  }
}

TEST(ranks, of_processes_add_up) {
  for (int const size : {1, 2, 4}) {
    rank_processes all("adds_up", size);
    for (int r = 0; r < size; ++r) {
      auto const e = all.end_of(r);
      EXPECT_EQ(e.status, 0) << e.said;
    }
  }
}

void expect_named(rank_processes::end const& e, int rank, int victim, char const* words) {
  EXPECT_EQ(e.status, named) << "rank " << rank << ": " << e.said;
  EXPECT_NE(e.said.find("rank " + std::to_string(victim) + " " + words), std::string::npos) << e.said;
  EXPECT_NE(e.said.find("rank " + std::to_string(rank) + " of 3"), std::string::npos) << e.said;
  EXPECT_NE(e.said.find("Start the program again, from its last checkpoint"), std::string::npos) << e.said;
}

TEST(ranks, name_one_that_is_killed_at_each_collective) {
  for (int const victim : {0, 2}) {
    for (int k = 1; k <= rounds; ++k) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " at collective " + std::to_string(k));
      rank_processes all("adds_up", 3,
                         {"WEIR_TEST_VICTIM=" + std::to_string(victim), "WEIR_TEST_FATAL=" + std::to_string(k)});
      for (int r = 0; r < 3; ++r) {
        auto const e = all.end_of(r);
        if (r == victim)
          EXPECT_EQ(e.signal, SIGKILL) << e.said;
        else
          expect_named(e, r, victim, "has ended, or its connection is broken");
      }
    }
  }
}

TEST(ranks, name_one_that_is_stopped_at_each_collective) {
  for (int const victim : {0, 2}) {
    for (int k = 1; k <= rounds; ++k) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " at collective " + std::to_string(k));
      rank_processes all("adds_up", 3,
                         {"WEIR_TEST_VICTIM=" + std::to_string(victim), "WEIR_TEST_FATAL=" + std::to_string(k),
                          "WEIR_TEST_SIGNAL=" + std::to_string(SIGSTOP), "WEIR_TEST_SILENCE_MS=1200"});
      all.await_stop(victim);
      for (int r = 0; r < 3; ++r) {
        if (r != victim)
          expect_named(all.end_of(r), r, victim, "has sent nothing for ");
      }
      // When it goes on, it hears of its own verdict, or finds the others gone.
      all.tell(victim, SIGCONT);
      auto const e = all.end_of(victim);
      EXPECT_EQ(e.status, named) << e.said;
    }
  }
}

TEST(ranks, wait_for_one_that_is_stopped_for_less) {
  rank_processes all("adds_up", 3,
                     {"WEIR_TEST_VICTIM=1", "WEIR_TEST_FATAL=2", "WEIR_TEST_SIGNAL=" + std::to_string(SIGSTOP)});
  all.await_stop(1);
  std::this_thread::sleep_for(300ms);
  all.tell(1, SIGCONT);
  for (int r = 0; r < 3; ++r) {
    auto const e = all.end_of(r);
    EXPECT_EQ(e.status, 0) << e.said;
  }
}

// If all ranks stop and continue together, the watch names no rank.
TEST(ranks, that_are_all_stopped_go_on) {
  rank_processes all("adds_up", 3,
                     {"WEIR_TEST_VICTIM=1", "WEIR_TEST_FATAL=2", "WEIR_TEST_SIGNAL=" + std::to_string(SIGSTOP),
                      "WEIR_TEST_SILENCE_MS=1500"});
  all.await_stop(1);
  for (int const r : {0, 2})
    all.tell(r, SIGSTOP);
  std::this_thread::sleep_for(2500ms);
  for (int r = 0; r < 3; ++r)
    all.tell(r, SIGCONT);
  for (int r = 0; r < 3; ++r) {
    auto const e = all.end_of(r);
    EXPECT_EQ(e.status, 0) << e.said;
  }
}

}  // namespace
