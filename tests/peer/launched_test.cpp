// The ranks of a process on threads, and what they tell each other.
// Threads: one for each rank.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/peer/ranks.h"
#include "tests/support/refused.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir::launched_tests {
namespace {

using namespace weir::test;

struct launched_ranks : ::testing::Test {
  runtime own{simulated{.devices = 3, .memory = 16_MiB}};
  runtime_guard in{own};
};

TEST_F(launched_ranks, are_one_for_each_device_or_for_the_first_ones) {
  EXPECT_EQ(communicator::create_launched().size(), 3u);
  auto const two = communicator::create_launched(2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].size(), 2);
  EXPECT_EQ(two[1].device(), device(1));
  EXPECT_NE(refused([] { communicator::create_launched(4); }).find("4 ranks: there are 3 devices"), std::string::npos);
  EXPECT_NE(refused([] { communicator::create_launched(-1); }), "");
}

TEST_F(launched_ranks, run_with_their_devices_and_exchange_numbers) {
  struct numbers {
    int rank;
    double half;
  };
  auto ranks = communicator::create_launched();
  std::atomic<int> bodies{0};
  run_ranks(ranks, [&](communicator& c) {
    EXPECT_EQ(current_device(), c.device());
    EXPECT_EQ(&runtime::current(), &own);
    auto const all = c.exchange(numbers{c.rank(), c.rank() / 2.0});
    for (int r = 0; r < c.size(); ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)].rank, r);
      EXPECT_EQ(all[static_cast<std::size_t>(r)].half, r / 2.0);
    }
    ++bodies;
  });
  EXPECT_EQ(bodies, 3);
}

TEST_F(launched_ranks, draw_the_same_numbers_unless_seeded_apart) {
  auto ranks = communicator::create_launched();
  run_ranks(ranks, [&](communicator& c) {
    auto const same = c.exchange(rand({1}).item<float>());
    EXPECT_EQ(same[0], same[1]);
    manual_seed(static_cast<std::uint64_t>(c.rank()), c.device());
    auto const apart = c.exchange(rand({1}).item<float>());
    EXPECT_NE(apart[0], apart[1]);
    EXPECT_NE(apart[1], apart[2]);
  });
  EXPECT_NE(refused([] { manual_seed(1, device(3)); }), "");
}

// The other ranks fail later, because of it.
TEST_F(launched_ranks, throw_what_the_first_that_failed_has_thrown) {
  for (int const first : {0, 2}) {
    auto ranks = communicator::create_launched();
    auto const body = [&](communicator& c) {
      if (c.rank() == first)
        throw std::runtime_error("the cause");
      try {
        for (;;)
          c.exchange(1.f);
      } catch (std::exception const&) {
        throw std::runtime_error("what follows");
      }
    };
    try {
      run_ranks(ranks, body);
      ADD_FAILURE() << "nothing was thrown";
    } catch (std::runtime_error const& e) {
      EXPECT_STREQ(e.what(), "the cause") << first;
    }
  }
}

// The rank waits in its exchange already: what it would return was never written.
TEST_F(launched_ranks, whose_exchange_is_aborted_get_no_numbers) {
  auto ranks = communicator::create_launched(2);
  std::atomic<bool> has_numbers{false};
  std::string why;
  EXPECT_THROW(run_ranks(ranks,
                         [&](communicator& c) {
                           if (c.rank() == 1) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(20));
                             throw std::runtime_error("the cause");
                           }
                           why = refusal<driver_error>([&] { c.exchange(7); });
                           has_numbers = why.empty();
                         }),
               std::runtime_error);
  EXPECT_FALSE(has_numbers);
  EXPECT_NE(why.find("rank 1 aborted this communicator"), std::string::npos) << why;
}

}  // namespace
}  // namespace weir::launched_tests
