// Large broadcasts, scatters and gathers by weir's own copies: every byte arrives, in the order of all ranks'
// streams, whichever call is refused.
// Threads: a thread a rank.
#include <algorithm>
#include <utility>

#include "peer/link/links.h"
#include "tests/peer/chain_rig.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir {
namespace {

using test::pattern;
using test::chains::chunk;
using test::chains::part;
using test::chains::slice;
using rig = test::chains::rig;

TEST(chains, the_option_says_from_which_size_on_they_carry) {
  for (auto const& [from, says] : {std::pair{std::size_t{0}, false}, std::pair{std::size_t{part}, true},
                                   std::pair{std::size_t{part} + 1, false}}) {
    test::machine m({.devices = 2, .memory = 64_MiB}, {.copy_collectives_from = from});
    auto ranks = communicator::create_all(test::first_devices(2));
    std::vector<buffer> all;
    for (int k = 0; k < 2; ++k)
      all.emplace_back(part, buffer_options{.on = device(k)});
    for (int k = 0; k < 2; ++k)
      enable_peer_access(all[static_cast<std::size_t>(k)].data(), device(1 - k));
    copy(all[0].data(), pattern(part, 3).data(), part);
    test::on_each(m.own, ranks, [&](communicator& c) {
      c.broadcast({all[static_cast<std::size_t>(c.rank())].data(), part, uint8}, 0);
    });
    EXPECT_EQ(ranks[0].explain_last().find("copies:") != std::string::npos, says)
        << from << ": " << ranks[0].explain_last();
    EXPECT_EQ(test::read_back(all[1].data(), part, 1), pattern(part, 3));
  }
}

// The report names the chunks.
TEST(chains, a_broadcast_from_every_root_brings_every_byte) {
  for (int n = 2; n <= 4; ++n) {
    rig r({.devices = n, .memory = 64_MiB}, {.check_races = true});
    r.open_all();
    for (int root = 0; root < n; ++root) {
      r.fill_all(static_cast<std::uint64_t>(10 * root));
      r.broadcast(root);
      r.expect_all_hold(pattern(part, static_cast<std::uint64_t>(11 * root)),
                        "from " + std::to_string(root) + " of " + std::to_string(n));
    }
    std::string const said = r.ranks.back().explain_last();
    EXPECT_EQ(said, "copies: " + std::to_string(n - 1) + (n == 2 ? " hop" : " hops") + ", 6 chunks of 9 KiB");
    EXPECT_EQ(race_reports().size(), 0u);
    r.expect_valid();
  }
}

// Also without copies, by the backend behind the chains. Apart and in place.
TEST(chains, scatter_and_gather_place_every_part) {
  for (std::size_t from : {std::size_t{1}, peer::chains::never}) {
    rig r({.devices = 3, .memory = 64_MiB}, {.check_races = true});
    if (from == 1)
      r.open_all();
    r.m.get().part<peer::chains>().carry_from(from);
    for (int root = 0; root < 3; ++root) {
      for (bool in_place : {false, true}) {
        std::string const when = "root " + std::to_string(root) + (in_place ? " in place" : " apart") +
                                 (from == 1 ? "" : " by the carrier behind");
        auto const at = [&](communicator const& c) {
          auto s = r.mine(c);
          if (in_place && c.rank() == root)
            s.data = r.wholes[static_cast<std::size_t>(root)].data<std::byte>() + root * part;
          return s;
        };
        r.fill_all(40);
        r.each([&](communicator& c) { c.scatter(at(c), r.whole(c), root); });
        auto const dealt = pattern(static_cast<std::size_t>(3 * part), static_cast<std::uint64_t>(140 + root));
        for (int k = 0; k < 3; ++k) {
          bool const stays = in_place && k == root;
          EXPECT_EQ(r.read(r.parts[static_cast<std::size_t>(k)], k),
                    stays ? pattern(part, static_cast<std::uint64_t>(40 + k)) : slice(dealt, k))
              << when << ", rank " << k;
          auto const left = pattern(static_cast<std::size_t>(3 * part), static_cast<std::uint64_t>(140 + k));
          EXPECT_EQ(r.read(r.wholes[static_cast<std::size_t>(k)], k), left) << when << ", rank " << k << "'s whole";
        }
        r.fill_all(70);
        r.each([&](communicator& c) { c.gather(r.whole(c), at(c), root); });
        auto const had = pattern(static_cast<std::size_t>(3 * part), static_cast<std::uint64_t>(170 + root));
        auto const came = r.read(r.wholes[static_cast<std::size_t>(root)], root);
        for (int k = 0; k < 3; ++k) {
          EXPECT_EQ(slice(came, k),
                    in_place && k == root ? slice(had, k) : pattern(part, static_cast<std::uint64_t>(70 + k)))
              << when << ", part " << k;
        }
      }
    }
    EXPECT_EQ(r.ranks[1].explain_last(),
              from == 1 ? "copies: 2 hops" : "parts on each stream: chain copies are not enabled");
    EXPECT_EQ(race_reports().size(), 0u);
    r.expect_valid();
  }
}

// No byte, one byte, about one chunk and about two, at odd addresses, on two to eight devices; by copies, and
// by parts on each stream.
TEST(chains, every_collective_brings_every_byte) {
  constexpr std::int64_t c = chunk, most = 2 * c + 1;
  for (int const n : {2, 3, 5, 8}) {
    rig r({.devices = n, .memory = 64_MiB});
    r.open_all();
    for (std::size_t const from : {std::size_t{1}, peer::chains::never}) {
      r.m.get().part<peer::chains>().carry_from(from);
      for (std::int64_t const size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{511}, c - 1, c, c + 1, most}) {
        static_assert(most < part - 8);
        int const root = static_cast<int>(size % n);
        std::string const when =
            std::to_string(size) + " B of " + std::to_string(n) + (from == 1 ? " by copies" : " by parts");
        auto const at = [](device_span s, std::int64_t offset, std::int64_t count) {
          return device_span{static_cast<std::byte*>(s.data) + offset, count, uint8};
        };
        auto const seen = [&](device_span s) { return test::to_host(s.data, static_cast<std::size_t>(s.count)); };
        auto const brings = [&](int rank, std::int64_t begin) {
          return test::encode(
              uint8, test::values_of(size, [&](std::int64_t i) { return test::brought(uint8, rank, begin + i); }));
        };
        r.each([&](communicator& rank) {
          int const k = rank.rank();
          device_span const mine = at(r.mine(rank), 1 + k % 3, size), all = at(r.whole(rank), 3 + k % 2, size * n);
          auto const fill = [&](device_span s) {
            test::elements const e = test::encode(
                uint8, test::values_of(s.count, [&](std::int64_t i) { return test::brought(uint8, k, i); }));
            copy(s.data, e.data(), e.size());
          };
          auto const slice = [&](int whose) { return at(all, whose * size, size); };
          fill(mine);
          rank.broadcast(mine, root);
          EXPECT_EQ(seen(mine), brings(root, 0)) << "broadcast of " << when;
          fill(all);
          rank.scatter(mine, all, root);
          EXPECT_EQ(seen(mine), brings(root, k * size)) << "scatter of " << when;
          fill(mine);
          rank.gather(all, mine, root);
          for (int other = 0; other < n; ++other)
            EXPECT_EQ(seen(slice(other)), k == root ? brings(other, 0) : brings(k, other * size))
                << "gather of " << when;
          fill(mine);
          rank.all_gather(all, mine);
          for (int other = 0; other < n; ++other)
            EXPECT_EQ(seen(slice(other)), brings(other, 0)) << "all_gather of " << when;
          fill(all);
          rank.reduce_scatter(mine, all, reduce_op::max);
          EXPECT_EQ(seen(mine), test::encode(uint8, test::values_of(size,
                                                                    [&](std::int64_t i) {
                                                                      return test::reduced(uint8, reduce_op::max, n,
                                                                                           k * size + i);
                                                                    })))
              << "reduce_scatter of " << when;
        });
        EXPECT_EQ(r.ranks[0].explain_last().find("copies:") != std::string::npos, from == 1 && size)
            << r.ranks[0].explain_last();
        if (HasFailure())
          return;
      }
    }
    r.expect_valid();
  }
}

TEST(chains, a_broadcast_is_ordered_with_every_ranks_stream) {
  for (int slow = 0; slow < 3; ++slow) {
    rig r({.devices = 3, .memory = 64_MiB});
    r.open_all();
    r.fill_all(50);
    auto const want = pattern(part, 1), after = pattern(part, 9);
    std::vector<buffer> kept;  // what each rank's stream read before and after
    for (int k = 0; k < 3; ++k)
      kept.emplace_back(2 * part, buffer_options{.on = device(k)});
    buffer const source = pinned(part), first = pinned(part);
    std::memcpy(source.data(), after.data(), part);
    std::memcpy(first.data(), want.data(), part);
    auto const late = current_stream(device(slow));
    std::vector<stamp> done(3);
    {
      test::held gate(r.m, late);
      r.each([&](communicator& c) {
        auto const k = static_cast<std::size_t>(c.rank());
        void* const mine = r.mine(c).data;
        if (k == 0)
          copy(current_stream(), mine, first.data(), part, non_blocking);
        copy(current_stream(), kept[k].data(), mine, part, non_blocking);
        done[k] = c.broadcast(r.mine(c), 0);
        copy(current_stream(), kept[k].data<std::byte>() + part, mine, part, non_blocking);
        copy(current_stream(), mine, source.data(), part, non_blocking);  // the old bytes are no longer read
      });
      EXPECT_FALSE(done[2].query()) << "it comes last, and waits for all before it";
      EXPECT_FALSE(done[static_cast<std::size_t>(slow)].query());
    }
    for (int k = 0; k < 3; ++k) {
      auto const seen = r.read(kept[static_cast<std::size_t>(k)], k);
      EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + part,
                             (k == 0 ? want : pattern(part, static_cast<std::uint64_t>(50 + k))).begin()))
          << "before, rank " << k;
      EXPECT_TRUE(std::equal(seen.begin() + part, seen.end(), want.begin())) << "after, rank " << k;
    }
    r.expect_all_hold(after, "overwritten");
  }
}

TEST(chains, memory_given_back_right_after_the_call_waits_for_it) {
  rig r({.devices = 3, .memory = 64_MiB}, {.check_races = true});
  r.open_all();
  r.fill_all(1);
  auto const want = pattern(part, 1);
  buffer out = pinned(part);
  {
    test::held gate(r.m, current_stream(device(1)));
    r.each([&](communicator& c) {
      c.broadcast(r.mine(c), 0);
      if (c.rank() == 2)
        copy(current_stream(), out.data(), r.mine(c).data, part, non_blocking);
      r.parts[static_cast<std::size_t>(c.rank())].reset();
    });
    for (int k = 0; k < 3; ++k) {
      device_guard const on(k);
      r.parts[static_cast<std::size_t>(k)] = buffer(part);
      fill(r.parts[static_cast<std::size_t>(k)].data(), std::byte{7}, part);
    }
  }
  for (int k = 0; k < 3; ++k)
    synchronize(device(k));
  EXPECT_EQ(std::memcmp(out.data(), want.data(), part), 0);
  EXPECT_EQ(race_reports().size(), 0u);
  r.expect_valid();
}

// Calls that are small, captured, of closed memory, or without links.
TEST(chains, unsuitable_calls_take_the_backend_and_say_why) {
  auto const expect_way = [](rig& r, std::string const& way) {
    r.fill_all(5);
    r.broadcast(1);
    r.expect_all_hold(pattern(part, 6), way);
    EXPECT_EQ(r.ranks[0].explain_last(), way);
    EXPECT_EQ(r.ranks[1].explain_last(), way);
  };
  rig r({.devices = 2, .memory = 64_MiB});
  EXPECT_EQ(r.ranks[0].explain_last(), "");
  for (int k = 0; k < 2; ++k)
    EXPECT_EQ(r.m.get().part<peer::links>().known(k, 1 - k), peer::links::link_state::proven)
        << "while collectives are under way nothing can be tried";
  auto& chains = r.m.get().part<peer::chains>();
  chains.carry_from(part + 1);
  expect_way(r, "parts on each stream: 50003 B are less than 50004 B");
  chains.carry_from(1);
  std::vector<buffer> opened;  // on pages that the links' trial opened
  for (int k = 0; k < 2; ++k) {
    auto& mine = r.parts[static_cast<std::size_t>(k)];
    while (r.m.memory(k).granted(mine.data(), 1 - k))
      opened.push_back(std::exchange(mine, buffer(part, {.on = device(k)})));
  }
  // A block is opened once eight times its size has been copied there. Handles count with their full size.
  std::size_t const held = std::max<std::size_t>(part, peer::links::least_handle),
                    times = (peer::links::worth_times * held + part - 1) / part;
  for (std::size_t i = 1; i < times; ++i)
    r.broadcast(1);
  EXPECT_EQ(r.ranks[0].explain_last(), "parts on each stream: memory of rank 0 is not open to gpu:1 yet");
  expect_way(r, "copies: 1 hop, 6 chunks of 9 KiB");

  rig apart({.devices = 2, .memory = 64_MiB, .peers = simulated::links::none});
  expect_way(apart, "parts on each stream: gpu:1 does not reach memory of gpu:0");

  rig segments({.devices = 2, .memory = 64_MiB, .virtual_memory = false});
  expect_way(segments, "parts on each stream: memory of gpu:0 consists of segments, which peers cannot access");
}

// The communicators have the same devices.
TEST(chains, streams_serve_the_next_communicator) {
  rig r({.devices = 3, .memory = 64_MiB});  // has a communicator of all three
  constexpr auto of_three = static_cast<std::ptrdiff_t>(3 * peer::chains::side_by_side);
  auto const streams_after_one_of = [&](int devices) {
    (void)communicator::create_all(test::first_devices(devices));
    return std::ranges::count_if(r.m.control().census(), [](auto const& one) { return one.starts_with("stream"); });
  };
  auto const before = streams_after_one_of(2);
  EXPECT_EQ(streams_after_one_of(2), before);
  EXPECT_EQ(streams_after_one_of(3), before + of_three) << "others are in use, or of two devices";
  EXPECT_EQ(streams_after_one_of(2), before + of_three);
}

// The devices run in any order: a hop that passes on bytes before they arrive is seen here.
TEST(chains, any_schedule_gives_right_bytes_without_races) {
  for (auto const seed : tests::seeds("chains", 8)) {
    rig r({.devices = 4, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
          {.check_races = true});
    r.open_all();
    r.fill_all(1);
    simulation machine = simulation::of(r.m.own);
    int const root = static_cast<int>(seed % 4);
    for (auto& c : r.ranks) {
      machine.spawn("rank " + std::to_string(c.rank()), [&r, &c, root] {
        device_guard const on(c.device());
        c.broadcast(r.mine(c), root);
        c.gather(r.whole(c), r.mine(c), (root + 1) % 4);
        c.scatter(r.mine(c), r.whole(c), (root + 1) % 4);
      });
    }
    machine.join();
    r.expect_all_hold(pattern(part, static_cast<std::uint64_t>(1 + root)), "seed " + std::to_string(seed));
    EXPECT_EQ(race_reports().size(), 0u) << "seed " << seed;
    r.expect_valid();
  }
}

TEST(chains, chunks_suit_the_size_and_the_number_of_hops) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  auto const& chains = m.get().part<peer::chains>();
  EXPECT_EQ(chains.chunk_for(1_GiB, 1), 1_GiB) << "a single hop is a copy";
  EXPECT_EQ(chains.chunk_for(1_GiB, 3), 40_MiB);
  EXPECT_EQ(chains.chunk_for(64_MiB, 3), 10_MiB);
  EXPECT_EQ(chains.chunk_for(1_MiB, 3), 1_MiB);
  EXPECT_EQ(chains.chunk_for(64_GiB, 3), 1_GiB) << "no more chunks than a driver has room for";
  EXPECT_LT(chains.chunk_for(1_GiB, 7), chains.chunk_for(1_GiB, 3));
}

}  // namespace
}  // namespace weir
