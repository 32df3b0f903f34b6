// Stream ids over the life of a process: a handle may come back from the driver at once, an id never does.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/clock/stream_clock.h"
#include "simulator/machine/machine.h"
#include "tests/support/sanitized.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

constexpr int many = tests::sanitized ? 10'000 : 100'000;

// Foreign streams, one after another, each known to weir for as long as it lives.
void use_up_streams(runtime::impl& r) {
  auto& machine = r.machine();
  auto& clocks = r.part<clock::clocks>();
  r.open(0, "test", source_location::current());
  std::set<driver::stream_handle> handles;
  std::uint64_t last = 0;
  for (int i = 0; i < many; ++i) {
    auto const s = machine.create_stream(0, driver::stream_kind::independent, 0);
    ASSERT_TRUE(s.ok());
    handles.insert(s.value);
    clock::stream_clock& line = clocks.make(0, s.value, clock::life::foreign);
    ASSERT_GT(line.id(), last);  // never one that was there before
    last = line.id();
    ASSERT_EQ(clock::find(last), &line);
    clocks.retire(line);
    ASSERT_TRUE(machine.destroy_stream(0, s.value).ok());
  }
  if (auto const* const control = driver::sim::controls_of(machine)) {
    auto const left = control->census();
    EXPECT_LT(std::count_if(left.begin(), left.end(), [](auto const& what) { return what.starts_with("event"); }), 1000)
        << "streams that are gone keep their events";
  }
  if (machine.simulated() && !machine.moves_by_itself()) {
    EXPECT_LT(handles.size(), 100u) << "handles are to come back here";
  }
}

TEST(stream_ids, m18_stream_ids_are_never_reused_on_this_machine) {
  use_up_streams(runtime::current().get());
}

TEST(stream_ids, m18_ids_are_unique_where_handles_are_reused) {
  runtime mine(simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  use_up_streams(mine.get());
}

}  // namespace
}  // namespace weir
