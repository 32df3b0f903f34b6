// Communicators split among the threads of one process, on the machine at hand and on simulated ones.
#include <future>

#include "runtime/core/parts.h"
#include "tests/peer/ranks.h"
#include "weir/sim.h"

namespace weir::split_tests {
namespace {

using namespace test;

std::int32_t sum_of(communicator& c, double mine) {
  buffer const b = to_device(encode(int32, {mine}));
  c.all_reduce({b.data(), 1, int32});
  return static_cast<std::int32_t>(decode(int32, to_host(b.data(), 4).data()));
}

TEST(split, makes_groups_by_color_in_order_of_key) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  for (bool const reversed : {false, true}) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      int const color = c.rank() % 2;
      auto part = c.split(color, reversed ? -c.rank() : 7);
      ASSERT_TRUE(part.has_value());
      int const members = (n - color + 1) / 2, place = c.rank() / 2;
      EXPECT_EQ(part->size(), members);
      EXPECT_EQ(part->rank(), reversed ? members - 1 - place : place);
      EXPECT_EQ(part->device().index(), c.device().index());
      int want = 0;
      for (int r = color; r < n; r += 2)
        want += r + 1;
      EXPECT_EQ(sum_of(*part, c.rank() + 1), want);
      EXPECT_EQ(sum_of(c, 1), n) << "the parent works on";
      c.barrier();
    });
  }
}

TEST(split, one_without_a_color_and_one_alone) {
  runtime machine(simulated{.devices = 4, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(4));
  on_each(machine, ranks, [&](communicator& c) {
    auto part = c.split(c.rank() == 2 ? communicator::no_color : c.rank() == 1 ? 9 : 4);
    EXPECT_EQ(part.has_value(), c.rank() != 2);
    if (part) {
      EXPECT_EQ(part->size(), c.rank() == 1 ? 1 : 2);
      EXPECT_EQ(sum_of(*part, 5), 5 * part->size());
      part->barrier();
    }
  });
}

TEST(split, parts_outlive_their_parent_and_can_be_split) {
  runtime machine(simulated{.devices = 4, .memory = 64_MiB});
  runtime_guard const in(machine);
  std::vector<communicator> halves;
  {
    auto ranks = communicator::create_all(first_devices(4));
    std::vector<std::optional<communicator>> got(4);
    on_each(machine, ranks, [&](communicator& c) { got[static_cast<std::size_t>(c.rank())] = c.split(c.rank() / 2); });
    for (auto& one : got)
      halves.push_back(std::move(*one));
  }
  on_each(machine, halves, [](communicator& c) {
    EXPECT_EQ(sum_of(c, 1), 2);
    auto const alone = c.split(c.rank());
    EXPECT_EQ(alone->size(), 1);
  });
  halves[0].abort();
  EXPECT_NE(halves[1].failure(), "");
  EXPECT_EQ(halves[2].failure(), "") << "of the other color";
}

TEST(split, a_bad_color_or_another_call_is_refused) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(2));
  EXPECT_NE(refusal<invalid_use>([&] { (void)ranks[0].split(-2); }).find("color -2"), std::string::npos);
  auto waits = std::async(std::launch::async, [&] {
    while (true) {
      try {
        return ranks[0].split(1)->size();
      } catch (invalid_use const&) {}  // rank 1 was first, at its barrier
    }
  });
  std::string text;
  while (text.empty()) {  // until rank 0 has called
    text = refusal<invalid_use>([&] {
      try {
        ranks[1].barrier(std::chrono::milliseconds(5));
      } catch (timed_out const&) {}
    });
  }
  EXPECT_NE(text.find("rank 1 calls barrier where rank 0 called split"), std::string::npos) << text;
  EXPECT_EQ(ranks[1].split(1)->size(), 2);
  EXPECT_EQ(waits.get(), 2);
}

// The first one of a round has left it.
TEST(split, is_refused_in_the_name_of_a_rank_that_still_waits) {
  runtime machine(simulated{.devices = 3, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(3));
  auto waits = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return refusal<std::exception>([&] { ranks[1].barrier(); });
  });
  std::string waited_for = "rank 1 ";
  while (waited_for.find("rank 1 ") != std::string::npos)  // until it has come, too
    waited_for = refusal<timed_out>([&] { ranks[0].barrier(std::chrono::milliseconds(200)); });
  std::string const text = refusal<invalid_use>([&] { (void)ranks[0].split(0); });
  EXPECT_NE(text.find("rank 0 calls split where rank 1 called barrier"), std::string::npos) << text;
  ranks[2].abort();
  EXPECT_NE(waits.get().find("rank 2 aborted"), std::string::npos);
}

// The rank that waits is told by whom.
TEST(split, ends_with_an_abort_or_a_missing_rank) {
  for (bool const aborts : {true, false}) {
    runtime machine(simulated{.devices = 2, .memory = 64_MiB});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(2));
    auto said =
        std::async(std::launch::async, [&] { return refusal<std::exception>([&] { (void)ranks[0].split(0); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (aborts)
      ranks[1].abort();
    else
      ranks.pop_back();
    std::string const text = said.get();
    EXPECT_NE(text.find(aborts ? "rank 1 aborted" : "rank 1's communicator is destroyed"), std::string::npos) << text;
  }
}

TEST(split, of_a_seeded_machine_is_the_same_under_every_seed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    runtime machine(simulated{.devices = 3, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    auto ranks = communicator::create_all(first_devices(3));
    simulation hand = simulation::of(machine);
    std::vector<int> sums(3);
    for (int r = 0; r < 3; ++r)
      hand.spawn("rank", [&, r] {
        runtime_guard const here(machine);
        device_guard const on(r);
        auto part = ranks[static_cast<std::size_t>(r)].split(r == 1, -r);
        sums[static_cast<std::size_t>(r)] = 10 * part->rank() + sum_of(*part, r + 1);
      });
    hand.join();
    EXPECT_EQ(sums, (std::vector{10 + 4, 2, 4})) << seed;
  }
}

}  // namespace
}  // namespace weir::split_tests
