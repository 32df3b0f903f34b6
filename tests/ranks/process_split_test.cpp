// Communicators split among several processes, which threads with runtimes of their own play.
#include "peer/ranks/rendezvous.h"
#include "peer/ranks/watch.h"
#include "runtime/base/os.h"
#include "runtime/base/sync.h"
#include "tests/ranks/rank_threads.h"
#include "tests/ranks/raw_tcp.h"
#include "tests/support/refused.h"

namespace weir::process_split_tests {
namespace {

using namespace test;
using namespace std::chrono_literals;

std::int32_t sum_of(communicator& c, double mine) {
  buffer const b = to_device(encode(int32, {mine}));
  c.all_reduce({b.data(), 1, int32});
  return static_cast<std::int32_t>(decode(int32, to_host(b.data(), 4).data()));
}

TEST(process_split, makes_groups_by_color_in_order_of_key) {
  for (bool const reversed : {false, true}) {
    as_ranks(5, [&](communicator& c) {
      int const color = c.rank() == 3 ? communicator::no_color : c.rank() % 2;
      auto part = c.split(color, reversed ? -c.rank() : 3);
      EXPECT_EQ(part.has_value(), c.rank() != 3);
      if (part) {
        int const members = color ? 1 : 3, place = c.rank() / 2;
        EXPECT_EQ(part->size(), members);
        EXPECT_EQ(part->rank(), reversed ? members - 1 - place : place);
        EXPECT_EQ(sum_of(*part, c.rank() + 1), color ? 2 : 9);
        part->barrier();
      }
      EXPECT_EQ(sum_of(c, 1), 5) << "the parent works on";
      c.barrier();
    });
  }
}

TEST(process_split, parts_outlive_their_parent_and_can_be_split) {
  as_ranks(4, [](communicator& c) {
    communicator half = *c.split(c.rank() / 2);
    { communicator const ends = std::move(c); }
    EXPECT_EQ(sum_of(half, 1), 2);
    communicator alone = *half.split(half.rank(), 0);
    EXPECT_EQ(sum_of(alone, 6), 6);
    half.barrier();
  });
}

TEST(process_split, a_missing_rank_is_named_and_may_come_later) {
  as_ranks(3,
           [](communicator& c) {
             if (c.rank() == 1) {
               std::this_thread::sleep_for(400ms);
             } else {
               std::string const text = refusal<timed_out>([&] { (void)c.split(0); });
               EXPECT_NE(text.find("split: rank " + std::to_string(c.rank()) + " of 3 waited 150 ms for rank 1"),
                         std::string::npos)
                   << text;
             }
             c.barrier(5s);
             EXPECT_EQ(c.split(0)->size(), 3);
           },
           {.start = 150ms});
}

TEST(process_split, a_rank_that_dies_or_calls_another_is_named) {
  std::vector<std::string> said;
  as_ranks(
      3,
      [](communicator& c) {
        if (c.rank() == 2)
          throw std::runtime_error("enough");
        (void)c.split(0);
      },
      {.start = 20s}, &said);
  for (std::size_t const r : {0u, 1u})
    EXPECT_NE(said[r].find("rank 2"), std::string::npos) << said[r];
  as_ranks(2, [](communicator& c) {
    EXPECT_NE(refusal<invalid_use>([&] { (void)c.split(-3); }).find("color -3"), std::string::npos);
    bool const splits = c.rank() == 1;
    std::string const text = refusal<invalid_use>([&] { splits ? (void)c.split(0) : c.barrier(); });
    EXPECT_NE(text.find(splits ? "rank 1 calls split where rank 0 calls barrier"
                               : "rank 0 calls barrier where rank 1 calls split"),
              std::string::npos)
        << text;
    c.barrier();
    EXPECT_EQ(c.split(5)->size(), 2);
  });
}

// Rank 1 is none of weir's: it brings less than a color and a key.
TEST(process_split, that_brings_too_little_is_refused) {
  std::string const id = communicator::unique_id();
  std::thread raw_rank([&id] {
    peer::met m = peer::meet_rank_0(*peer::rendezvous_id_of(id), {}, {1, 2, true}, long_enough, {});
    peer::rank_watch to_0(1, 2, std::move(m.with.watch), {20s, 20s}, [] {});
    to_0.start({});
    using enum peer::rank_watch::round;
    EXPECT_EQ(to_0.meet(connect, long_enough).is, peer::rank_watch::at_barrier::end::all_came);
    EXPECT_EQ(to_0.meet(split, long_enough, "1234567").is, peer::rank_watch::at_barrier::end::all_came);
  });
  {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const in(machine);
    auto c = communicator::create(id, 0, 2, device(0));
    std::string const text = refusal<invalid_use>([&] { (void)c.split(0); });
    EXPECT_NE(text.find("rank 0 calls split where rank 1 calls split of another pool or size, or after other "
                        "collectives"),
              std::string::npos)
        << text;
  }
  raw_rank.join();
}

// Each rank listens in case it is the first of its color.
TEST(process_split, without_a_port_can_be_repeated) {
  static base::atomic<int> left{0};
  as_ranks(4, [](communicator& c) {
    c.barrier();
    if (c.rank() == 0) {
      left.store(4);
      os::refuse_by(
          [](os::call k) noexcept { return k == os::call::listen_tcp && left.load() > 0 && left.fetch_sub(1) > 0; });
    }
    c.barrier();
    int failed = 0;
    try {
      EXPECT_EQ(c.split(c.rank() / 2)->size(), 2);
    } catch (driver_error const& e) {
      EXPECT_NE(std::string(e.what()).find("has no port"), std::string::npos) << e.what();
      failed = 1;
    }
    EXPECT_EQ(sum_of(c, failed), 4);
    if (c.rank() == 0)
      os::refuse_by(nullptr);
    EXPECT_EQ(c.split(c.rank() / 2)->size(), 2);
    c.barrier();
  });
}

}  // namespace
}  // namespace weir::process_split_tests
