// Threads of one process that send and open at once: each has channels of its own, and all share a few pages.
// Threads: several, each with its own stream, lines and buffers;
// one buffer is sent by one of them and opened by all.
#include <algorithm>
#include <thread>

#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "tests/peer/machine_fixture.h"

namespace weir::sharing_threads {
namespace {

constexpr std::size_t bytes = 20'000;
constexpr int threads = 4;

std::pair<share_channel, share_channel> lines() {
  auto const [a, b] = os::make_sockets();
  return {share_channel(a, std::chrono::seconds(60)), share_channel(b, std::chrono::seconds(60))};
}

void on_all_threads(test::machine& m, std::function<void(int)> const& body) {
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      runtime_guard const in(m.own);
      body(t);
    });
  }
  for (auto& one : all)
    one.join();
}

TEST(threads_that_share, see_their_own_messages) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  on_all_threads(m, [](int t) {
    auto [here, there] = lines();
    stream const s;
    stream_guard const on(s);
    buffer const host = pinned(bytes);
    for (int round = 0; round < 40; ++round) {
      auto const value = static_cast<std::byte>(t * 40 + round);
      exportable_buffer b(bytes);
      fill(b.data(), value, bytes);
      here.send(b, s);
      if (round % 2)
        b.reset();  // in transit
      auto o = there.receive();
      copy(s, host.data(), o.data(), bytes);
      auto const seen = host.host<std::byte>();
      ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [&](std::byte x) { return x == value; }))
          << "thread " << t << ", round " << round;
      if (round % 3)
        o.release(s);
    }
  });
  EXPECT_LE(m.get().part<peer::imports>().mapped(), std::size_t{threads} * 4);
}

TEST(threads_that_share, map_memory_once_for_all) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  exportable_buffer const b(bytes);
  fill(b.data(), std::byte{7}, bytes);
  std::vector<std::pair<share_channel, share_channel>> all;
  for (int t = 0; t < threads; ++t) {
    all.push_back(lines());
    all.back().first.send(b, default_stream(0));
  }
  std::vector<imported_buffer> opened(threads);
  on_all_threads(m, [&](int t) { opened[std::size_t(t)] = all[std::size_t(t)].second.receive(); });
  for (auto const& o : opened)
    EXPECT_EQ(o.data(), opened[0].data());
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 1u);
  EXPECT_EQ(b.importers(), threads);
  on_all_threads(m, [&](int t) { opened[std::size_t(t)].reset(); });
  EXPECT_EQ(b.importers(), 0);
}

TEST(threads_that_share, find_all_of_it_open_to_peers) {
  test::machine m({.devices = 3, .memory = 64_MiB});
  base::atomic<int> open{0};  // readers so far
  on_all_threads(m, [&](int t) {
    share_pool pool({.on = 0, .handle_bytes = 2_MiB});
    auto const spare = [&] { return m.get().part<peer::exports>().forget_idle() > 0; };
    for (int round = 0; round < 60; ++round) {
      if (t == 0 && round % 25 == 20) {
        int const next = open.load() + 1;
        enable_peer_access(device(0), {device(next)});
        open.store(next);
      }
      int const readers = open.load();
      exportable_buffer const b(bytes * std::size_t(1 + round % 3 * 200), 0), of_pool = pool.allocate(bytes);
      for (auto const* one : {&b, &of_pool}) {
        for (int d = 1; d <= readers; ++d) {
          auto const its = m.get().part<observe::external_memory>().find(one->data());
          ASSERT_TRUE(its && its->readers >> d & 1) << "gpu:" << d;
        }
      }
      if (round % 7 == t)
        (void)spare();
    }
  });
}

}  // namespace
}  // namespace weir::sharing_threads
