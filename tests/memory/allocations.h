// The fixture of the allocator tests: two small devices of a stepped machine, and two streams.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

struct allocations : ::testing::Test {
  explicit allocations(options o = {})
      : bench({.devices = 2, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1}, o) {}
  memory::allocator& device() { return bench.on(0); }
  void* take(clock::stream_clock& s, std::size_t bytes, std::size_t alignment = 0) {
    return device().allocate(s, bytes, alignment, at);
  }
  void give(void* p, clock::stream_clock* last = nullptr) { device().deallocate(p, last, at); }
  // Work that the stream completes only when it is stepped.
  void busy(clock::stream_clock& s) {
    ASSERT_TRUE(bench.machine().enqueue(s.device(), s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
};

}  // namespace weir::tests
