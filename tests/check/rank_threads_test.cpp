// Ranks that are threads of a program, on seeded and stepped machines: a wait lets the others come.
// Threads: one for each rank.
#include <atomic>
#include <thread>

#include "tests/check/programs.h"
#include "weir/collective.h"
#include "weir/tensor.h"

namespace weir::check_tests {
namespace {

constexpr int ranks = 3;

void on_threads(std::function<void(communicator&)> const& body) {
  runtime& machine = runtime::current();
  std::vector<device> who;
  for (int k = 0; k < ranks; ++k)
    who.emplace_back(k);
  auto all = communicator::create_all(who);
  std::vector<std::thread> threads;
  for (communicator& c : all)
    threads.emplace_back([&] {
      runtime_guard const in(machine);
      device_guard const on(c.device());
      body(c);
    });
  for (auto& t : threads)
    t.join();
}

simulated machine_of(std::uint64_t seed) {
  return {.devices = ranks, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed};
}

// The first to wait does so before the others have enqueued their parts.
TEST(rank_threads, that_are_correct_pass_at_every_seed) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    expect_none(found_in(machine_of(seed), [] {
      on_threads([](communicator& c) {
        tensor const x = ones({4});
        for (int turn = 0; turn < 3; ++turn) {
          c.all_reduce({x.data(), 4, float32});
          float const got = x[0].item<float>();
          EXPECT_EQ(got, turn == 0 ? 3 : turn == 1 ? 9 : 27);
        }
        if (c.rank() == 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        buffer const y(4);
        fill(y.data(), std::byte{1}, 4);
        c.send_receive({y.data(), 1, int32}, (c.rank() + 1) % ranks, {x.data(), 1, int32}, (c.rank() + 2) % ranks);
        current_stream().synchronize();
      });
    }));
  }
}

// The thread that makes the machine is a rank: it waits before another thread has called the machine at all.
TEST(rank_threads, that_come_late_are_waited_for) {
  expect_none(found_in(machine_of(3), [] {
    auto all = communicator::create_all(std::vector<device>{device(0), device(1)});
    runtime& machine = runtime::current();
    auto const adds = [](communicator& c) {
      device_guard const on(c.device());
      tensor const x = ones({4});
      c.all_reduce({x.data(), 4, float32});
      EXPECT_EQ(x[0].item<float>(), 2);
    };
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      runtime_guard const in(machine);
      adds(all[1]);
    });
    adds(all[0]);
    other.join();
  }));
}

// Each waits for one that waits as well. No other thread uses the machine, so nothing can come.
TEST(rank_threads, that_all_wait_are_stuck_at_once) {
  for (auto const how : {simulated::scheduling::seeded, simulated::scheduling::stepped}) {
    simulated like = machine_of(7);
    like.schedule = how;
    auto const before = std::chrono::steady_clock::now();
    auto const all = found_in(like, [] {
      auto ranks_here = communicator::create_all(std::vector<device>{device(0), device(1)});
      runtime& machine = runtime::current();
      std::atomic<int> came{0};
      auto const waits = [&](communicator& c) {
        device_guard const on(c.device());
        buffer const x(4);
        c.receive({x.data(), 1, int32}, 1 - c.rank());
        for (came.fetch_add(1); came.load() < 2;)
          std::this_thread::yield();
        EXPECT_THROW(current_stream().synchronize(), error);
        for (came.fetch_add(1); came.load() < 4;)
          std::this_thread::yield();
        c.abort();
      };
      std::thread other([&] {
        runtime_guard const in(machine);
        waits(ranks_here[1]);
      });
      waits(ranks_here[0]);
      other.join();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(25));
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all[0].kind, "stuck") << texts(all);
  }
}

}  // namespace
}  // namespace weir::check_tests
