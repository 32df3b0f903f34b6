// options::device_idle, for a program: which calls look, and what a capture and its graph keep.
// Threads: one.
#include <gtest/gtest.h>

#include "runtime/memory/device/device_memory.h"
#include "weir/graph.h"
#include "weir/memory.h"
#include "weir/observe.h"

namespace weir {
namespace {

void let_time_pass() {
  for (std::int64_t const from = base::now_ns(); base::now_ns() - from < 3'000'000;) {}
}

struct device_idle : testing::Test {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, {.device_idle = std::chrono::milliseconds(1)}};
  runtime_guard in{own};
  stream s{gpu, priority::normal}, t{gpu, priority::normal};
  std::size_t reserved() { return static_cast<std::size_t>(memory_stats(0).reserved_bytes.all.current); }
  void TearDown() override {
    EXPECT_EQ(own.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }
};

TEST_F(device_idle, each_synchronization_looks) {
  event e;
  std::function<void()> const waits[] = {[] { synchronize(); }, [&] { s.synchronize(); },
                                         [&] { s.stamp().synchronize(); },
                                         [&] {
                                           e.record(s);
                                           e.synchronize();
                                         }};
  for (std::size_t i = 0; i < std::size(waits); ++i) {
    deallocate(allocate(s, 8_MiB));
    for (int look = 0; look < 3; ++look)
      waits[i](), let_time_pass();
    EXPECT_EQ(reserved(), 0u) << i;
  }
}

TEST_F(device_idle, a_capture_goes_on_and_its_graph_keeps_its_memory) {
  deallocate(allocate(t, 4_MiB));
  auto const g = graph::capture(s, [&] {
    deallocate(allocate(s, 8_MiB));
    for (int look = 0; look < 3; ++look) {
      let_time_pass();
      t.synchronize();
    }
  });
  EXPECT_EQ(reserved(), g.footprint().reserved) << "what others left is gone";
  EXPECT_GE(reserved(), 8_MiB);
  for (int look = 0; look < 3; ++look)
    synchronize(), let_time_pass();
  EXPECT_EQ(reserved(), g.footprint().reserved);
}

}  // namespace
}  // namespace weir
