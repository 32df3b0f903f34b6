// Collectives by copies in chains that cannot end well: refused calls, aborts, lost devices.
// Threads: a thread a rank.
#include <cstdlib>
#include <cstring>

#include "tests/peer/chain_rig.h"
#include "weir/sim.h"

namespace weir {
namespace {

using test::pattern;
using test::chains::part;
using test::chains::slice;
using rig = test::chains::rig;

TEST(chains, a_waiting_rank_is_released_by_abort_or_end) {
  {
    rig r({.devices = 3, .memory = 64_MiB});
    std::thread other([&] { r.ranks[1].abort(); });  // before the call, or while it waits
    device_guard const on(0);
    EXPECT_THROW(r.ranks[0].broadcast(r.mine(r.ranks[0]), 0), driver_error);
    other.join();
  }
  rig r({.devices = 3, .memory = 64_MiB});
  std::thread other([&] { auto const gone = std::move(r.ranks[2]); });
  device_guard const on(0);
  EXPECT_THROW(r.ranks[0].broadcast({r.parts[0].data(), part, uint8}, 0), error);
  other.join();
}

TEST(chains, other_roots_or_overlaps_are_refused_by_name) {
  rig r({.devices = 2, .memory = 64_MiB});
  device_guard const on(0);
  auto& c = r.ranks[0];
  EXPECT_THROW(c.scatter(r.mine(c), r.whole(c), 2), invalid_use);
  EXPECT_THROW(c.gather(r.whole(c), r.mine(c), -1), invalid_use);
  device_span const inside{r.wholes[0].data<std::byte>() + 1, part, uint8};
  EXPECT_NE(test::refusal<invalid_use>([&] { c.scatter(inside, r.whole(c), 0); }).find("overlaps the whole"),
            std::string::npos);
  EXPECT_NE(test::refusal<invalid_use>([&] { c.gather(r.whole(c), inside, 0); }).find("overlaps the whole"),
            std::string::npos);
  EXPECT_THROW(c.gather({r.wholes[0].data(), 2 * part - 1, uint8}, r.mine(c), 0), invalid_use);
  EXPECT_THROW(c.scatter(r.mine(r.ranks[1]), r.whole(c), 0), invalid_use) << "memory of another device";
  r.m.get().part<peer::chains>().carry_from(peer::chains::never);
  c.gather(r.whole(c), r.mine(c), 0);
  device_guard const other(1);
  auto const text = test::refusal<invalid_use>([&] { r.ranks[1].gather(r.whole(r.ranks[1]), r.mine(r.ranks[1]), 1); });
  EXPECT_NE(text.find("gather of 50003 uint8 to rank 1 where rank 0 called gather of 50003 uint8 to rank 0"),
            std::string::npos)
      << text;
  r.ranks[1].gather({}, r.mine(r.ranks[1]), 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
std::uint64_t const stride = 7;  // one in `stride` calls is refused
#else
std::uint64_t const stride = std::getenv("WEIR_CHECK_RACES") ? 7 : 1;
#endif

// A refusal is absorbed, or thrown at all ranks. Then the collective works again.
TEST(chains, any_call_refused_leaves_a_repeatable_collective) {
  int thrown = 0;
  for (int which = 0; which < 3; ++which) {
    rig r({.devices = 3, .memory = 64_MiB});
    r.open_all();
    auto const once = [&](communicator& c) {
      r.give(c, std::array{peer::collective::broadcast, peer::collective::scatter,
                           peer::collective::gather}[static_cast<std::size_t>(which)]);
    };
    auto const expect_right = [&](std::uint64_t k) {
      for (int rank = 0; which == 2 && rank < 3; ++rank)
        ASSERT_EQ(slice(r.read(r.wholes[0], 0), rank), pattern(part, static_cast<std::uint64_t>(1 + rank)))
            << "call " << k << ", part " << rank;
      if (which == 2)
        return;
      auto const dealt = pattern(static_cast<std::size_t>(3 * part), 101);
      for (int rank = 0; rank < 3; ++rank)
        ASSERT_EQ(r.read(r.parts[static_cast<std::size_t>(rank)], rank), which ? slice(dealt, rank) : pattern(part, 1))
            << "call " << k << ", rank " << rank;
    };
    bool reached = true;
    for (std::uint64_t k = 1; reached && !testing::Test::HasFailure(); k += stride) {
      r.fill_all(1);
      base::atomic<int> refused{0};
      std::uint64_t order = 0;
      r.each([&](communicator& c) {
        c.barrier();
        if (c.rank() == 0)
          order = r.m.control().fail_call("any", k, driver::code::failed);
        c.barrier();
        try {
          once(c);
        } catch (driver_error const&) {
          refused.fetch_add(1);
        }
      });
      reached = !r.m.control().cancel_failure(order);
      EXPECT_TRUE(refused.load() == 0 || refused.load() == 3) << "call " << k << ": " << refused.load();
      thrown += refused.load() == 3;
      if (refused.load() == 0)
        expect_right(k);
      r.fill_all(1);
      r.each(once);
      expect_right(k);
      r.expect_valid();
    }
  }
  EXPECT_GT(thrown, stride > 1 ? 1 : 20);
}

// Streams that wait for the lost device never move again. Other streams go on. A host that waits for a stuck
// stream gets device_lost, and then that stream's device is lost, too.
TEST(chains, a_device_lost_in_the_middle_is_named_at_every_rank) {
  for (auto const what : {peer::collective::broadcast, peer::collective::scatter, peer::collective::gather}) {
    rig r({.devices = 3, .memory = 64_MiB});
    r.open_all();
    r.fill_all(1);
    auto const gate = r.m.driver().hold(1, streams::clock_of(current_stream(device(1))).handle());
    ASSERT_TRUE(gate.ok());
    r.each([&](communicator& c) { r.give(c, what); });
    r.m.control().lose_device(1);
    {
      stream other(device(0));
      device_guard const on(0);
      stream_guard const at(other);
      buffer const fresh(part, {.on = device(0)}), out = pinned(part);
      copy(other, fresh.data(), pattern(part, 3).data(), part);
      copy(other, out.data(), fresh.data(), part);
      EXPECT_EQ(std::memcmp(out.data(), pattern(part, 3).data(), part), 0);
    }
    for (int k : {0, 1})
      EXPECT_THROW(synchronize(device(k)), device_lost) << k;
    if (what == peer::collective::gather) {
      synchronize(device(2));  // a gather's parts do not depend on each other
    } else {
      EXPECT_THROW(synchronize(device(2)), device_lost);
    }
    for (int round = 0; round < 2; ++round) {
      base::atomic<int> told{0};
      r.each([&](communicator& c) {
        std::string const why = test::refusal<driver_error>([&] { r.give(c, what); });
        told.fetch_add(why.find("lost") != std::string::npos || why.find("aborted") != std::string::npos);
      });
      EXPECT_EQ(told.load(), 3) << round;
    }
  }
}

// Copies of the lost device may never be known to have ended. Memory that they may touch is not reused.
TEST(chains, a_device_lost_between_copies_is_named) {
  rig r({.devices = 3, .memory = 64_MiB});
  r.open_all();
  std::vector<int> const devices{0, 1, 2};
  auto& owner = r.m.get();
  auto by_streams = peer::carried_by_streams(owner, devices);
  auto const carrier =
      peer::carried_in_chains(owner, devices, std::move(by_streams), "parts", source_location::current());
  r.m.control().fail_call("copy_peer", 2, driver::code::lost);  // from gpu:1 to gpu:2
  r.each([&](communicator& c) {
    auto const mine = r.mine(c);
    peer::collective_request const what{
        peer::collective::broadcast, uint8, reduce_op::sum, 0, part, mine.data, mine.data};
    EXPECT_THROW(carrier->issue(c.rank(), streams::clock_of(current_stream()), {&what, 1}, source_location::current()),
                 device_lost);
  });
  for (int const rank : devices)
    EXPECT_EQ(carrier->broken(rank), "gpu:1 is lost");
  void const* const touched = r.parts[2].data();
  r.parts[2].reset();
  for (int i = 0; i < 3; ++i) {
    r.parts.emplace_back(part, buffer_options{.on = device(2)});
    EXPECT_NE(r.parts.back().data(), touched);
  }
}

}  // namespace
}  // namespace weir
