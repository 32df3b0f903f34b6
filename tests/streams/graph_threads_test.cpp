// weir/graph.h among threads: an allocation beside the begin of a capture, on the same stream.
// Threads: two in each run, switched by its seed.
#include <gtest/gtest.h>

#include <optional>

#include "tests/support/seeds.h"
#include "weir/graph.h"
#include "weir/memory.h"
#include "weir/sim.h"

namespace weir {
namespace {

// Another thread may allocate on the stream as soon as the driver has begun the capture. Its growth may still move
// pages of the graph's memory when the capture ends: they count once it is done.
TEST(graphs_among_threads, a_capture_has_its_memory_from_the_start) {
  for (auto const seed : tests::seeds("graphs_from_the_start", 60)) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    stream s;
    deallocate(s, allocate(s, 1_MiB));
    auto control = simulation::of(machine);
    graph_memory const memory;
    std::optional<graph> g;
    control.spawn("captures",
                  [&] { g.emplace(graph::capture(s, [&] { deallocate(allocate(s, 1_MiB)); }, {.memory = &memory})); });
    control.spawn("allocates", [&] {
      for (int i = 0; i < 6; ++i)
        deallocate(allocate(s, 3_MiB));
    });
    control.join();
    EXPECT_GT(memory.reserved(), 0u) << "WEIR_TEST_SEED=" << seed;
    EXPECT_GT(g->footprint().reserved, 0u) << "WEIR_TEST_SEED=" << seed;
  }
}

// The thread that first notes the capture closes the fast paths of all threads.
TEST(graphs_among_threads, an_asker_leaves_no_fast_path_open) {
  for (auto const seed : tests::seeds("graphs_asked_meanwhile", 200)) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    stream s;
    auto control = simulation::of(machine);
    graph_memory const memory;
    std::optional<graph> g;
    control.spawn("captures", [&] {
      for (int i = 0; i < 3; ++i)
        deallocate(allocate(s, 512));
      g.emplace(graph::capture(s, [&] { deallocate(allocate(s, 512)); }, {.memory = &memory}));
    });
    control.spawn("asks", [&] {
      for (int i = 0; i < 4; ++i)
        (void)s.ref().is_capturing();
    });
    control.join();
    EXPECT_GT(memory.reserved(), 0u) << "WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
