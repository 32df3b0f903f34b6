// A stepped machine whose streams run only as a test says, for the tests of reuse.
// Threads: its test's thread.
#pragma once
#include <gtest/gtest.h>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

// A stream runs only when a test steps it or the host waits for it. The memory is as large as an H200's; only
// mapped memory costs time.
struct reuse_machine {
  explicit reuse_machine(options o = {}, std::size_t memory = std::size_t{141} << 30)
      : bench({.devices = 1, .memory = memory, .schedule = simulated::scheduling::stepped, .seed = 1}, o) {}
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench.on(0)); }
  void* take(clock::stream_clock& s, std::size_t bytes) { return device().allocate(s, bytes, 0, at); }
  void give(void* p, clock::stream_clock* last = nullptr) { device().deallocate(p, last, at); }
  void busy(clock::stream_clock& s) {
    ASSERT_TRUE(bench.machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  memory_statistics stats() { return device().statistics(); }
  std::size_t most_reserved() { return static_cast<std::size_t>(stats().reserved_bytes.all.peak); }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  // Each batch is allocated on `from`, used on `to`, and freed. The host never queries the device.
  void batches(clock::stream_clock& from, clock::stream_clock& to, int n, std::size_t bytes) {
    for (int i = 0; i < n; ++i) {
      void* const p = take(from, bytes);
      busy(from);
      device().record_use(p, to, at);
      ASSERT_TRUE(to.wait(from.now()).ok());
      busy(to);
      give(p);
    }
  }
  // The same without marks: the free names the last user, and the slots are deferred frees.
  void named_batches(clock::stream_clock& from, clock::stream_clock& to, int n, std::size_t bytes) {
    for (int i = 0; i < n; ++i) {
      void* const p = take(from, bytes);
      busy(from);
      ASSERT_TRUE(to.wait(from.now()).ok());
      busy(to);
      give(p, &to);
    }
  }
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
};

}  // namespace weir::tests
