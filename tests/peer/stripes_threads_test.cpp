// Large copies over shared links from several threads at once: they make, share and return lanes.
// Threads: a thread a stream.
#include "peer/copy/stripes.h"

#include "tests/peer/machine_fixture.h"
#include "tests/support/sanitized.h"
#include "weir/observe.h"

namespace weir {
namespace {

constexpr std::size_t n = peer::stripes::worth + 5;
constexpr std::size_t lane_bytes = peer::stripes::slots * peer::stripes::largest_chunk;
constexpr int threads = 5;  // one more than a device has lanes for, so that some copy goes straight

TEST(stripes, concurrent_copies_get_their_bytes_and_share_lanes) {
  test::machine m({.devices = 3, .memory = 512_MiB});
  device const others[] = {1, 2};
  std::vector<std::exception_ptr> failed(threads);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      try {
        runtime_guard const in(m.own);
        link_sharing_guard const lent(others);
        stream s{device(0)};
        stream_guard const on(s);
        buffer const there = pinned(n), back = pinned(n), on_gpu(n, {.on = device(0)});
        for (int round = 0; round < (tests::sanitized ? 1 : 2); ++round) {
          auto const want = test::pattern(n, static_cast<std::uint64_t>(10 * t + round));
          std::memcpy(there.data(), want.data(), n);
          copy(s, on_gpu.data(), there.data(), n, non_blocking);
          copy(s, back.data(), on_gpu.data(), n);
          EXPECT_EQ(std::memcmp(back.data(), want.data(), n), 0) << "thread " << t << ", round " << round;
        }
      } catch (...) {
        failed[static_cast<std::size_t>(t)] = std::current_exception();
      }
    });
  }
  for (auto& one : all)
    one.join();
  for (auto const& one : failed) {
    if (one)
      std::rethrow_exception(one);
  }
  for (int d : {1, 2}) {
    auto const held = static_cast<std::size_t>(m.memory(d).statistics().allocated_bytes.all.current);
    EXPECT_GE(held, lane_bytes) << "some went over lent links";
    EXPECT_LE(held, peer::stripes::most_copies * lane_bytes);
    EXPECT_EQ(held % lane_bytes, 0u);
  }
  for (int d = 0; d < 3; ++d)
    EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
  EXPECT_EQ(m.clocks().validate(), std::vector<std::string>{});
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
