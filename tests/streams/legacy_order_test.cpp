// Streams of both flags beside work that names no stream, on GPUs if there are any, else simulated.
// Threads: one.
#include <gtest/gtest.h>

#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir {
namespace {

// Gates of the driver hold the first stream, so that only an order can keep the second one back.
struct legacy_order : ::testing::Test {
  driver::driver& machine = runtime::current().get().machine();
  stream const blocking{0, stream_flags::blocking}, apart{0};
  stream_ref const legacy = borrow_stream(0, nullptr);
  buffer const memory{default_stream(0), 3 * 4096};

  void SetUp() override {
    for (stream_ref const s : {blocking.ref(), apart.ref(), legacy})
      work(s);  // the first of its kind may block
    synchronize(0);
  }
  void work(stream_ref s) {
    std::size_t const mine = s == legacy ? 0 : s == blocking.ref() ? 1 : 2;
    fill(s, memory.data<std::byte>() + mine * 4096, std::byte{1}, 4096);
  }
  // Whether `second` waits for what `first` was given before.
  bool waits(stream_ref second, stream_ref first) {
    auto const gate = machine.hold(0, streams::clock_of(first).handle());
    EXPECT_TRUE(gate.ok());
    work(first);
    work(second);
    bool waited = true;
    if (second == apart.ref() || first == apart.ref()) {
      second.synchronize();  // would hang if it waited
      waited = false;
    } else {
      waited = !second.query();
    }
    EXPECT_FALSE(first.query());
    EXPECT_TRUE(machine.open_gate(gate.value).ok());
    synchronize(0);
    return waited;
  }
};

TEST_F(legacy_order, a_blocking_stream_waits_and_is_waited_for) {
  EXPECT_TRUE(waits(blocking, legacy));
  EXPECT_TRUE(waits(legacy, blocking));
  EXPECT_TRUE(waits(default_stream(0), legacy));
}

TEST_F(legacy_order, a_non_blocking_stream_does_neither) {
  EXPECT_FALSE(waits(apart, legacy));
  EXPECT_FALSE(waits(legacy, apart));
  EXPECT_FALSE(waits(apart, blocking));
}

TEST_F(legacy_order, flags_are_what_the_driver_says) {
  for (stream_ref const s : {blocking.ref(), apart.ref(), legacy, default_stream(0)}) {
    auto const kind = machine.kind_of(0, streams::clock_of(s).handle());
    ASSERT_TRUE(kind.ok());
    EXPECT_EQ(kind.value == driver::stream_kind::blocking, s.flags() == stream_flags::blocking);
    EXPECT_EQ(s.flags() == stream_flags::non_blocking, s == apart.ref());
  }
}

}  // namespace
}  // namespace weir
