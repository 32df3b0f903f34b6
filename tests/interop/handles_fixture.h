// Simulated devices on which each call about a stream that was destroyed is noted, for streams by handle.
// Threads: as a test says.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/interop/handle_watch.h"
#include "tests/support/refused.h"
#include "weir/launch.h"
#include "weir/observe.h"

namespace weir::by_handle {

using test::refused;
inline constexpr size_t small = 512, large = 2_MiB;

struct handles : testing::Test {
  std::optional<watched_runtime> owned;
  std::optional<runtime_guard> in;
  void make(simulated like, options o = {}) {
    in.reset();
    owned.emplace(like, o);
    in.emplace(*owned->rt);
  }
  void SetUp() override { make({.devices = 2, .memory = 64_MiB}); }
  void TearDown() override {
    if (owned) {
      EXPECT_EQ(owned->watch->asked_of_the_dead(), std::vector<std::string>{});
    }
  }
  runtime& rt() { return *owned->rt; }
};

inline std::uint64_t fences() {
  return memory_stats(0).fences;
}
inline void busy(stream_ref s, void* block, size_t bytes) {
  launch(
      s, {writes(block, bytes)}, [](CUstream_st*) {}, [] {});
}
inline bool has(std::string const& text, std::string_view words) {
  return text.find(words) != text.npos;
}

}  // namespace weir::by_handle
