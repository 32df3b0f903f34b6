// Ranks of several processes while they are connected, and their first calls.
// WEIR_TEST_VICTIM, …: what a rank of these tests does. Each rank is a process, on GPUs if there are some.
// Threads: one for each rank, and one that ends it.
#include <cstdlib>
#include <thread>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "tests/peer/first_collectives.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace {

using namespace weir;
using namespace weir::test;
using namespace std::chrono_literals;
using tests::number_from_environment;
using clock_of_host = std::chrono::steady_clock;

constexpr auto there = rank_processes::machine::this_one;
constexpr int named = 3, not_named = 4;  // exit statuses

int own_rank() {
  return static_cast<int>(number_from_environment("RANK", 0));
}
bool on_gpus() {
  return !runtime::current().is_simulated();
}
int milliseconds_since(clock_of_host::time_point begin) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(clock_of_host::now() - begin).count());
}
std::string variable(char const* name, auto value) {
  return std::string(name) + "=" + std::to_string(value);
}

// Says why the ranks cannot continue, once they cannot.
int end_named(std::string const& said, int victim) {
  std::printf("%s\n", said.c_str());
  return said.find("rank " + std::to_string(victim)) != std::string::npos ? named : not_named;
}
std::string failure_of(communicator const& c, std::chrono::seconds limit) {
  auto const end = clock_of_host::now() + limit;
  while (c.failure().empty() && clock_of_host::now() < end)
    std::this_thread::sleep_for(1ms);
  return c.failure();
}

// The victim ends some time after it has begun to create its communicator.
WEIR_RANK_ROLE(ends_while_it_starts) {
  auto const victim = static_cast<int>(number_from_environment("WEIR_TEST_VICTIM", 99));
  auto const after = std::chrono::microseconds(number_from_environment("WEIR_TEST_AFTER_US", 0));
  current_stream().synchronize();
  auto const begin = clock_of_host::now();
  if (own_rank() == victim)
    std::thread([after] {
      std::this_thread::sleep_for(after);
      ::kill(::getpid(), SIGKILL);
    }).detach();
  try {
    auto const c = communicator::from_environment({.start = on_gpus() ? 8s : 1s});
    if (victim == 99) {
      std::printf("%d ms", milliseconds_since(begin));
      return 0;
    }
    return end_named(failure_of(c, 10s), victim);
  } catch (error const& e) {
    return end_named(e.what(), victim);
  }
}

// It is killed at any time. Each names it.
TEST(process_start, of_one_that_is_killed_ends_the_others) {
  rank_processes whole("ends_while_it_starts", 2, {}, there);
  int took_ms = 0;
  for (int const r : {0, 1}) {
    auto const e = whole.end_of(r, 60s);
    ASSERT_EQ(e.status, 0) << e.said;
    took_ms = std::max(took_ms, std::atoi(e.said.c_str()));
  }
  constexpr int parts = 6;
  for (int const victim : {0, 1}) {
    for (int part = 0; part < parts; ++part) {
      SCOPED_TRACE(base::text("rank ", victim, " after ", part, "/", parts, " of ", took_ms, " ms"));
      rank_processes all("ends_while_it_starts", 2,
                         {variable("WEIR_TEST_VICTIM", victim),
                          variable("WEIR_TEST_AFTER_US", (took_ms + 1) * 1000 * (2 * part + 1) / (2 * parts))},
                         there);
      auto const e = all.end_of(1 - victim, tests::sanitized ? 60s : 20s);
      EXPECT_EQ(e.status, named) << e.said;
      EXPECT_EQ(all.end_of(victim).signal, SIGKILL);
    }
  }
}

// Rank 1 cannot be connected, says so, and lives on.
WEIR_RANK_ROLE(fails_to_start) {
  static base::atomic<int> left{0};
  current_stream().synchronize();
  if (own_rank() == 1 && on_gpus())
    ::setenv("NCCL_NET", "none", 1);
  if (own_rank() == 1 && !on_gpus()) {
    left.store(static_cast<int>(number_from_environment("WEIR_TEST_FATAL", 1)));
    os::refuse_by([](os::call k) noexcept { return k == os::call::make_thread && left.fetch_sub(1) == 1; });
  }
  try {
    auto const c = communicator::from_environment({.start = 30s});
    return end_named(failure_of(c, 5s), 1);
  } catch (error const& e) {
    if (own_rank() == 1)
      std::this_thread::sleep_for(30s);
    return end_named(e.what(), 1);
  }
}

// As above, and its process goes on.
TEST(process_start, of_one_that_fails_ends_the_others) {
  int const threads = on_gpus() ? 1 : 3;  // that a simulated rank makes
  for (int fatal = 1; fatal <= threads; ++fatal) {
    rank_processes all("fails_to_start", 2, {variable("WEIR_TEST_FATAL", fatal)}, there);
    auto const e = all.end_of(0, 20s);
    EXPECT_EQ(e.status, named) << "thread " << fatal << ": " << e.said;
    all.tell(1, SIGKILL);
    EXPECT_EQ(all.end_of(1).signal, SIGKILL);
  }
}

// Rank 0 waits for the thread of rank 1 before each of its first collectives.
WEIR_RANK_ROLE(calls_in_turn) {
  auto c = communicator::from_environment({.start = 20s});
  auto const meet = [&c] { c.barrier(10s); };
  call_first_collectives(c, meet, meet);
  c.barrier(10s);
  return 0;
}

// NCCL connects ranks in the first call that takes an algorithm. That call waits for all ranks.
TEST(process_start, lets_first_collectives_wait_for_no_thread) {
  rank_processes all("calls_in_turn", 2, {}, there);
  for (int const r : {0, 1}) {
    auto const e = all.end_of(r, 45s);
    EXPECT_EQ(e.status, 0) << "rank " << r << ": " << e.said;
  }
}

// A pair connects in its first transfer: rank 0 waits inside NCCL until rank 1 receives, which it never does.
WEIR_RANK_ROLE(sends_to_one_that_ends) {
  bool const dies = number_from_environment("WEIR_TEST_DIES", 0) != 0;
  auto c = communicator::from_environment({.start = 20s});
  buffer const b(1_MiB);
  c.barrier(10s);
  if (c.rank() == 1) {
    std::this_thread::sleep_for(300ms);
    if (dies)
      ::kill(::getpid(), SIGKILL);
    c.abort();
    std::this_thread::sleep_for(5s);
    return 0;
  }
  auto const begin = clock_of_host::now();
  try {
    c.send({b.data(), 1 << 18, int32}, 1);
    current_stream().synchronize();
  } catch (error const& e) {
    std::printf("it threw %s\n", e.what());
  }
  std::string const said = failure_of(c, 5s);
  std::printf("after %d ms: ", milliseconds_since(begin));
  int const status = end_named(said, 1);
  return milliseconds_since(begin) < (tests::sanitized ? 10'000 : 2'000) ? status : 5;
}

// Rank 1 says so, or dies.
TEST(process_start, leaves_first_transfers_that_an_abort_ends) {
  for (bool const dies : {false, true}) {
    rank_processes all("sends_to_one_that_ends", 2, {variable("WEIR_TEST_DIES", dies)}, there);
    auto const waits = all.end_of(0, 20s), ends = all.end_of(1, 20s);
    EXPECT_EQ(waits.status, named) << "dies " << dies << ": " << waits.said;
    EXPECT_TRUE(dies ? ends.signal == SIGKILL : ends.status == 0) << ends.said;
  }
}

// Groups, a part of the ranks, and a rank that is alone.
WEIR_RANK_ROLE(adds_in_parts) {
  auto c = communicator::from_environment({.start = 20s});
  auto const sum_of = [](communicator& by, double mine) {
    constexpr int members = 16;
    std::vector<buffer> all;
    for (int i = 0; i < members; ++i)
      all.push_back(to_device(encode(int32, {mine, mine + i})));
    collective_group g(by);
    for (buffer const& each : all)
      g.all_reduce({each.data(), 2, int32});
    g.end();
    std::vector<elements> sums;
    for (buffer const& each : all)
      sums.push_back(to_host(each.data(), each.size()));
    for (int i = 0; i < members; ++i)
      EXPECT_EQ(decode(int32, sums[static_cast<std::size_t>(i)].data() + 4),
                decode(int32, sums[static_cast<std::size_t>(i)].data()) + i * by.size());
    return decode(int32, sums[0].data());
  };
  EXPECT_EQ(sum_of(c, c.rank() + 1), 3);
  auto both = c.split(0, -c.rank()), alone = c.split(c.rank());
  EXPECT_EQ(both->rank(), 1 - c.rank());
  EXPECT_EQ(sum_of(*both, c.rank() + 1), 3);
  EXPECT_EQ(sum_of(*alone, 5), 5);
  c.barrier();
  return testing::Test::HasFailure();
}

// On GPUs, a rank that is alone has a communicator of NCCL too.
TEST(process_start, gives_ranks_that_add_and_split) {
  rank_processes all("adds_in_parts", 2, {}, there);
  for (int const r : {0, 1}) {
    auto const e = all.end_of(r, 45s);
    EXPECT_EQ(e.status, 0) << "rank " << r << ": " << e.said;
  }
}

}  // namespace
