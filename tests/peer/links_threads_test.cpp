// Links among threads: a look at collectives beside a capture, and two calls that open the same memory.
// Threads: two in each run, switched by its seed.
#include <gtest/gtest.h>

#include "tests/support/seeds.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/peer.h"
#include "weir/share.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct links_among_threads : testing::Test {
  static simulated machine(std::uint64_t seed) {
    return {.devices = 2, .memory = 256_MiB, .schedule = simulated::scheduling::seeded, .seed = seed};
  }
};

// The first copy between two devices asks the streams of collectives whether they are idle. The driver spoils a
// capture of a stream that is asked.
TEST_F(links_among_threads, a_look_at_collectives_spoils_no_capture) {
  for (auto const seed : tests::seeds("links_beside_a_capture", 60)) {
    runtime own(machine(seed), {.peer_access = true});
    runtime_guard const in(own);
    auto control = simulation::of(own);
    device const both[] = {0, 1};
    auto ranks = communicator::create_all(both);
    stream near{device(0)}, far{device(1)}, other{device(0)};
    buffer const a(near, 4_KiB), b(far, 4_KiB), from(other, 1_MiB), to(1_MiB, {.on = device(1)});
    for (int rank = 0; rank < 2; ++rank) {
      stream_guard const on(rank ? far : near);
      ranks[static_cast<std::size_t>(rank)].all_reduce({rank ? b.data() : a.data(), 16});
    }
    std::string failed;
    control.spawn("captures", [&] {
      try {
        for (int i = 0; i < 8; ++i)
          (void)graph::capture(near, [&] { fill(near, a.data(), std::byte{1}, a.size()); });
      } catch (error const& e) {
        failed = e.what();
      }
    });
    control.spawn("copies", [&] { copy(other, to.data(), from.data(), to.size()); });
    control.join();
    EXPECT_EQ(failed, "") << "WEIR_TEST_SEED=" << seed;
    synchronize(device(0)), synchronize(device(1));
  }
}

// A grant is refused to one of two calls.
TEST_F(links_among_threads, a_failed_opening_takes_nothing_back) {
  for (auto const seed : tests::seeds("links_opened_twice", 60)) {
    runtime own(machine(seed));
    runtime_guard const in(own);
    auto control = simulation::of(own);
    (void)links();
    exportable_buffer const before(2_MiB, device(0));
    (void)control.fail_call("grant", 3);
    bool opened = false;
    for (char const* const name : {"a", "b"}) {
      control.spawn(name, [&] {
        try {
          enable_peer_access(device(0), {device(1)});
          opened = true;
        } catch (driver_error const&) {}
      });
    }
    control.join();
    control.clear_failures();
    EXPECT_TRUE(opened);
    exportable_buffer const later(2_MiB, device(0));
    EXPECT_NO_THROW(launch(
        default_stream(1), {reads(later.data(), 64)}, [](CUstream_st*) {}, [] {}))
        << "WEIR_TEST_SEED=" << seed;
    synchronize(device(1));
  }
}

}  // namespace
}  // namespace weir
