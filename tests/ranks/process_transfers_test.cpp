// Sends and receives between several processes: what only two ranks call, mismatches, and ranks that leave or fail.
// The processes are played by threads with runtimes of their own.
#include <random>

#include "peer/collective/group.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "tests/ranks/rank_threads.h"
#include "tests/ranks/raw_tcp.h"
#include "weir/sim.h"

namespace weir::process_transfer_tests {
namespace {

using namespace test;
using namespace std::chrono_literals;

device_span all_of(buffer const& b) {
  return {b.data(), static_cast<std::int64_t>(b.size() / 4), int32};
}

TEST(process_transfers, need_no_third_rank) {
  for (int const idle : {0, 1, 2}) {
    base::atomic<bool> done{false};
    as_ranks(3, [&](communicator& c) {
      if (c.rank() == idle) {
        while (!done.load())
          std::this_thread::sleep_for(1ms);
        return c.barrier();
      }
      int const other = 3 - idle - c.rank();
      buffer const mine = to_device(encode(int32, {1. * c.rank(), 5})), its(8);
      for (int k = 0; k < 20; ++k)
        c.send_receive(all_of(mine), other, all_of(its), other);
      EXPECT_EQ(to_host(its.data(), 8), encode(int32, {1. * other, 5}));
      if (c.rank() < other)
        c.send(all_of(mine), other).synchronize();
      else
        c.receive(all_of(its), other).synchronize();
      done.store(true);
      c.barrier();
    });
  }
}

// A collective that waits does not hold up a later transfer on another stream.
TEST(process_transfers, go_beside_a_collective_that_waits) {
  as_ranks(3, [](communicator& c) {
    stream const side(c.device());
    buffer const sum = to_device(encode(int32, {1})), mine = to_device(encode(int32, {7})), its(4);
    if (c.rank() != 2) {
      c.all_reduce(all_of(sum));
      stream_guard const on(side);
      c.rank() == 0 ? c.send(all_of(mine), 1) : c.receive(all_of(its), 0);
      if (c.rank() == 1)
        c.send(all_of(mine), 2);
      side.synchronize();
    } else {
      c.receive(all_of(its), 1).synchronize();
      c.all_reduce(all_of(sum));
    }
    EXPECT_EQ(to_host(sum.data(), 4), encode(int32, {3}));
    c.barrier();
  });
}

TEST(process_transfers, megabytes_cross_both_ways_at_once) {
  as_ranks(3, [](communicator& c) {
    std::int64_t const count = 2'000'003;
    auto const of = [&](int rank) {
      return encode(int32, values_of(count, [&](std::int64_t i) { return brought(int32, rank, i); }));
    };
    int const next = (c.rank() + 1) % 3, last = (c.rank() + 2) % 3;
    buffer const mine = to_device(of(c.rank())), first(mine.size()), second(mine.size());
    c.send_receive(all_of(mine), next, all_of(first), last);
    c.send_receive(all_of(mine), last, all_of(second), next);
    EXPECT_TRUE(to_host(first.data(), first.size()) == of(last));
    EXPECT_TRUE(to_host(second.data(), second.size()) == of(next));
    c.barrier();
  });
}

// A send waits for its receiver.
TEST(process_transfers, complete_after_both_have_come) {
  as_ranks(2, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1. + c.rank()}));
    if (c.rank() == 0) {
      stamp const sent = c.send(all_of(b), 1);
      std::this_thread::sleep_for(30ms);
      EXPECT_FALSE(sent.query());
      c.barrier();
      sent.synchronize();
    } else {
      c.barrier();
      c.receive(all_of(b), 0);
      EXPECT_EQ(to_host(b.data(), 4), encode(int32, {1}));
    }
  });
}

// Both requests are named on every rank, also on one that takes no part.
TEST(process_transfers, that_do_not_fit_end_all_by_name) {
  for (int const from : {0, 1}) {
    int const to = from + 1;
    std::vector<std::string> said;
    as_ranks(
        3,
        [&](communicator& c) {
          buffer const b = to_device(encode(int32, {1, 2, 3, 4}));
          if (c.rank() == from)
            c.send({b.data(), 4, int32}, to);
          if (c.rank() == to)
            c.receive({b.data(), 3, int32}, from);
          while (c.failure().empty())
            std::this_thread::sleep_for(1ms);
          current_stream().synchronize();
          c.all_reduce({b.data(), 4, int32});
        },
        {.start = 20s}, &said);
    for (std::string const& text : said) {
      EXPECT_NE(text.find(base::text("send of 4 int32 to rank ", to)), std::string::npos) << text;
      EXPECT_NE(text.find(base::text("receive of 3 int32 from rank ", from)), std::string::npos) << text;
      EXPECT_NE(text.find("(transfer 1)"), std::string::npos) << text;
    }
  }
}

TEST(process_transfers, name_a_rank_that_left_to_those_that_wait) {
  for (bool const sends : {true, false}) {
    base::atomic<bool> done{false};
    as_ranks(3, [&](communicator& c) {
      buffer const b = to_device(encode(int32, {1}));
      if (c.rank() == 2) {
        c.receive(all_of(b), 1).synchronize();
        return;
      }
      if (c.rank() == 1) {
        c.send(all_of(b), 2).synchronize();
        std::string text;
        try {
          sends ? c.send(all_of(b), 2).synchronize() : c.receive(all_of(b), 2).synchronize();
          text = c.failure();
          EXPECT_NE(text.find("rank 1 waits for it in a transfer"), std::string::npos) << text;
        } catch (error const& e) {  // it had left before
          text = e.operands();
        }
        EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
        done.store(true);
      }
      while (c.rank() == 0 && !done.load())
        std::this_thread::sleep_for(1ms);
    });
  }
}

// Those that still transfer are not disturbed, unless rank 0 leaves, which carries their bytes.
TEST(process_transfers, a_third_rank_may_leave_but_rank_0) {
  for (int const leaves : {0, 1}) {
    base::atomic<int> go{0};
    as_ranks(4, [&](communicator& c) {
      buffer const b = to_device(encode(int32, {1}));
      c.all_reduce(all_of(b)).synchronize();
      if (c.rank() == leaves)
        return;
      if (c.rank() < 2)
        return (void)[&] {
          while (go.load() < 2)
            std::this_thread::sleep_for(1ms);
        }
      ();
      std::this_thread::sleep_for(100ms);
      std::string text;
      try {
        for (int k = 0; k < 50; ++k) {
          c.rank() == 2 ? c.send(all_of(b), 3).synchronize() : c.receive(all_of(b), 2).synchronize();
          if (text = c.failure(); !text.empty())
            break;
        }
      } catch (error const& e) {
        text = e.operands();
      }
      go.fetch_add(1);
      if (leaves == 1)
        EXPECT_EQ(text, "");
      else
        EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
    });
  }
}

TEST(process_transfers, a_refused_part_changes_nothing) {
  as_ranks(2, [](communicator& c) {
    buffer const mine = to_device(encode(int32, {1. + c.rank()})), its(4);
    for (int round = 0; round < 2; ++round) {
      if (c.rank() == round) {
        simulation::of(runtime::current()).fail_call("enqueue", 1);
        EXPECT_NE(refusal<driver_error>([&] { c.send_receive(all_of(mine), 1 - c.rank(), all_of(its), 1 - c.rank()); }),
                  "");
      }
      c.send_receive(all_of(mine), 1 - c.rank(), all_of(its), 1 - c.rank());
      EXPECT_EQ(to_host(its.data(), 4), encode(int32, {2. - c.rank()}));
    }
    c.barrier();
  });
}

TEST(process_transfers, a_part_refused_in_its_middle_ends_all) {
  for (std::uint64_t const k : {2u, 3u, 4u}) {
    std::vector<std::string> said;
    as_ranks(
        2,
        [k](communicator& c) {
          buffer const mine = to_device(encode(int32, {1})), its(4);
          if (c.rank() == 1)
            simulation::of(runtime::current()).fail_call("enqueue", k);
          while (true) {
            c.send_receive(all_of(mine), 1 - c.rank(), all_of(its), 1 - c.rank());
            current_stream().synchronize();
          }
        },
        {.start = 20s}, &said);
    EXPECT_NE(said[0].find("rank 1"), std::string::npos) << said[0];
    EXPECT_NE(said[1], "");
  }
}

TEST(process_transfers, abort_releases_one_that_waits) {
  as_ranks(2, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1}));
    if (c.rank() == 1) {
      std::this_thread::sleep_for(30ms);
      return c.abort();
    }
    c.receive(all_of(b), 1).synchronize();
    EXPECT_NE(c.failure().find("rank 1 gave up"), std::string::npos) << c.failure();
  });
}

// The watch may hear of it while the call has agreed, and its backend does not know the call yet.
TEST(process_transfers, a_receiver_that_leaves_meanwhile_is_named) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    base::atomic<int> there{0};
    base::atomic<bool> done{false};
    auto const pause = std::chrono::microseconds(random() % 400);
    as_ranks(3, [&](communicator& c) {
      buffer const b = to_device(encode(int32, {1}));
      there.fetch_add(1);
      while (there.load() < 3)
        std::this_thread::yield();
      if (c.rank() == 2)
        return;
      if (c.rank() == 0) {  // carries the bytes
        while (!done.load())
          std::this_thread::sleep_for(1ms);
        return;
      }
      std::this_thread::sleep_for(pause);
      try {
        (void)c.send(all_of(b), 2);
        for (int ms = 0; ms < 10000 && c.failure().empty(); ++ms)
          std::this_thread::sleep_for(1ms);
        EXPECT_NE(c.failure(), "") << "round " << round;
        if (c.failure().empty())
          c.abort();
      } catch (invalid_use const&) {  // it had left before
      } catch (driver_error const&) {}
      done.store(true);
    });
  }
}

// Rank 0 reads what another process sends before it knows what it should be.
TEST(process_transfers, nonsense_on_a_line_is_blamed_on_its_rank) {
  struct head {
    std::uint64_t turn, bytes;
    std::int64_t count;
    std::int32_t root;
    std::uint8_t what, type, how, leaves;
    std::uint64_t placed = 0;
    std::uint32_t member = 0, members = 1;
  };
  constexpr std::uint8_t sum = 0, all_to_all = 6, sends = 7, receives = 8;
  constexpr std::uint8_t type = static_cast<std::uint8_t>(int32);
  head const nonsense[] = {
      {0, 4, 1, 0, 99, type, 0, 0},          // no such call
      {0, 4, 1, 0, sum, 99, 0, 0},           // no such type
      {0, 4, 1, 0, sum, type, 9, 0},         // no such reduction
      {0, 4, -1, 0, sends, type, 0, 0},      // a negative count
      {0, 4, 1, 2, sends, type, 0, 0},       // no such rank
      {0, 4, 1, 1, sends, type, 0, 0},       // to itself
      {0, 5, 1, 0, sends, type, 0, 0},       // more bytes than elements
      {0, 4, 1, 0, receives, type, 0, 0},    // a receive that brings bytes
      {0, 4, 1, 0, all_to_all, type, 0, 0},  // too few bytes
      {0, 0, std::int64_t{1} << 60, 0, all_to_all, type, 0, 0},
      {0, 4, 1, 0, sends, type, 0, 0, 0, 2, 2},  // a third of two members
  };
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  for (head const& h : nonsense) {
    auto [mine, theirs] = connected();
    std::vector<os::owned_file> lines(2);
    lines[1] = std::move(mine);
    base::atomic<int> blamed{-1};
    auto const carrier = peer::carried_by_sockets(
        machine.get(), {0, -1}, 0, std::move(lines),
        [&](int rank, std::string const& why) {
          EXPECT_NE(why.find("sends what does not fit"), std::string::npos) << why;
          blamed.store(rank);
        },
        source_location::current());
    raw_tcp other(std::move(theirs));
    EXPECT_TRUE(other.say(raw(h) + std::string(4, 'x')));
    for (int ms = 0; ms < 5000 && blamed.load() < 0; ++ms)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(blamed.load(), 1) << int{h.what};
  }
}

}  // namespace
}  // namespace weir::process_transfer_tests
