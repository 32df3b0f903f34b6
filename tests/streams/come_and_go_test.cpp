// What a server makes and ends for days: captures, graphs, pools. Addresses, memory and host memory stay as they are.
// Threads: one.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "runtime/memory/device/device_memory.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace weir {
namespace {

// So few addresses that a heap more for each of `rounds` would use them up several times.
constexpr int rounds = 3000, warm = 1500;
constexpr size_t addresses = 64_MiB;

struct coming_and_going : testing::TestWithParam<bool> {  // deterministic
  runtime own{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 1},
              options{.address_space = addresses, .deterministic = GetParam()}};
  runtime_guard in{own};
  stream s{gpu, priority::normal}, t{gpu, priority::normal};
  void* kept = nullptr;  // a block that outlives what it was made in, until the next one comes
  void keep(void* p) { deallocate(std::exchange(kept, p)); }

  void repeat(std::function<void()> const& round) {
    size_t held = 0, reserved = 0;
    for (int i = 0; i < rounds; ++i) {
      round();
      if (i % 50 == 0)
        synchronize();
      if (i == warm)
        held = mallinfo2().uordblks, reserved = memory_reserved();
    }
    synchronize();
    EXPECT_LT(mallinfo2().uordblks, held + 100 * 1024) << "bytes of host memory";
    EXPECT_LE(memory_reserved(), reserved + 4_MiB);
  }
  void TearDown() override {
    keep(nullptr);
    synchronize();
    empty_cache();
    EXPECT_EQ(memory_reserved(), 0u);
    EXPECT_EQ(own.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
    EXPECT_EQ(simulation::of(own).findings(), std::vector<std::string>{});
  }
};
INSTANTIATE_TEST_SUITE_P(memory, coming_and_going, testing::Bool(),
                         [](auto const& of) { return of.param ? "deterministic" : "usual"; });

TEST_P(coming_and_going, captures) {
  repeat([&] { (void)graph::capture(s, [&] { deallocate(allocate(s, 1000)); }); });
}

TEST_P(coming_and_going, launches_of_graphs_with_a_fork) {
  repeat([&] {
    auto g = graph::capture(s, [&] {
      void* const p = allocate(s, 300_KiB);
      t.wait(s);
      deallocate(allocate(t, 100_KiB));
      s.wait(t);
      deallocate(p);
    });
    g.launch(t);
  });
}

TEST_P(coming_and_going, captures_into_one_memory) {
  graph_memory const shared;
  repeat([&] { (void)graph::capture(s, [&] { deallocate(allocate(s, 1000)); }, {.memory = &shared}); });
}

// What an update replaces holds nothing.
TEST_P(coming_and_going, blocks_freed_in_updates_of_one_graph) {
  graph_memory const shared;
  auto const body = [&](void* before) { return [this, before] { deallocate(before), deallocate(allocate(s, 1000)); }; };
  auto g = graph::capture(s, body(allocate(s, 100_KiB)), {.memory = &shared});
  repeat([&] {
    g.launch(t);
    g.update(s, body(allocate(s, 100_KiB)));
  });
  synchronize();
  empty_cache();
  EXPECT_LE(memory_stats().pending_bytes.all.current, 2 * 100_KiB);  // of the last update
}

// The block waits for the graph, not for the memory, which lasts.
TEST_P(coming_and_going, blocks_freed_in_captures_into_one_memory) {
  graph_memory const shared;
  repeat([&] {
    void* const before = allocate(s, 100_KiB);
    auto g = graph::capture(s, [&] { deallocate(before), deallocate(allocate(s, 1000)); }, {.memory = &shared});
    g.launch(t);
  });
  synchronize();
  empty_cache();
  EXPECT_EQ(memory_stats().pending_bytes.all.current, 0);
}

TEST_P(coming_and_going, graphs_whose_output_outlives_them) {
  repeat([&] {
    void* out = nullptr;
    (void)graph::capture(s, [&] { out = allocate(s, 100_KiB); });
    keep(out);
  });
}

TEST_P(coming_and_going, pools) {
  repeat([&] {
    pool const p("a request");
    deallocate(p.allocate(s, 1000)), deallocate(p.allocate(t, 100_KiB));
  });
}

// What an ended pool's work still uses waits in the next pool of its stream: no step needs pages of its own.
TEST_P(coming_and_going, pools_of_steps_in_flight) {
  size_t most = 0;
  repeat([&] {
    pool const p("a step");
    void* const x = p.allocate(s, 1000);
    fill(t, x, std::byte{1}, 1000);
    deallocate(t, x);
    most = std::max(most, memory_reserved());
  });
  EXPECT_LE(most, 4_MiB);
}

TEST_P(coming_and_going, pools_that_end_asleep) {
  repeat([&] {
    void* out = nullptr;
    {
      pool p("a model");
      out = p.allocate(s, 100_KiB);
      p.sleep();
    }
    deallocate(out);
  });
}

TEST_P(coming_and_going, registered_pools) {
  int i = 0;
  repeat([&] {
    pool const p("gradients", {.limit = (1 + static_cast<size_t>(++i % 3)) * 2_MiB, .registered = true});
    deallocate(p.allocate(s, 1000));
  });
}

TEST_P(coming_and_going, registered_pools_whose_blocks_outlive_them) {
  repeat([&] {
    void* out = nullptr;
    {
      pool const p("gradients", {.limit = 2_MiB, .registered = true});
      out = p.allocate(s, 1000);
    }
    keep(out);
  });
}

}  // namespace
}  // namespace weir
