// Rule M6 of docs/reference/simulated-machine.md, on every machine: waits of and for the legacy stream.
// Threads: one.
#include <algorithm>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

constexpr auto legacy = stream_handle::legacy;
constexpr auto per_thread = stream_handle::per_thread;

class legacy_stream : public conformance {
 protected:
  void SetUp() override {
    conformance::SetUp();
    if (IsSkipped())
      return;
    // the first of its kind may block
    for (stream_handle const s : {legacy, per_thread, stream(0), stream(0, stream_kind::blocking)}) {
      log(0, s, 1000);
      finish(0, s);
    }
  }
  // x is in the log, and earlier entries do not matter.
  bool has(std::uint32_t x) {
    auto const all = logged();
    return std::find(all.begin(), all.end(), x) != all.end();
  }
  std::vector<std::uint32_t> last(std::size_t n) {
    auto const all = logged();
    return {all.end() - static_cast<std::ptrdiff_t>(std::min(n, all.size())), all.end()};
  }
};
WEIR_CONFORMANCE(legacy_stream);

TEST_P(legacy_stream, m6_a_legacy_operation_follows_blocking_streams) {
  auto const a = stream(0, stream_kind::blocking), b = stream(0, stream_kind::blocking);
  std::uint32_t x = 0;
  for (stream_handle const first : {a, b, per_thread}) {
    auto const e = event(0);
    auto& g = hold(0, first);
    log(0, first, ++x);
    log(0, legacy, ++x);
    EXPECT_OK(machine().record(0, legacy, e));
    EXPECT_SAYS(code::not_ready, machine().query_event(e));
    EXPECT_FALSE(has(x));
    g.open();
    EXPECT_OK(machine().synchronize_event(e));
    EXPECT_EQ(last(2), (std::vector<std::uint32_t>{x - 1, x}));
  }
}

TEST_P(legacy_stream, m6_blocking_streams_follow_a_legacy_operation) {
  auto const a = stream(0, stream_kind::blocking);
  for (stream_handle const second : {a, per_thread}) {
    auto const e = event(0);
    auto& g = hold(0, legacy);
    log(0, legacy, 4);
    log(0, second, 5);
    EXPECT_OK(machine().record(0, second, e));
    EXPECT_SAYS(code::not_ready, machine().query_event(e));
    g.open();
    EXPECT_OK(machine().synchronize_event(e));
    EXPECT_EQ(last(2), (std::vector<std::uint32_t>{4, 5}));
  }
}

TEST_P(legacy_stream, m6_a_legacy_operation_orders_two_streams) {
  auto const a = stream(0, stream_kind::blocking), b = stream(0, stream_kind::blocking);
  auto& g = hold(0, a);
  log(0, a, 1);
  log(0, b, 2);  // enqueued before the legacy operation: not held
  finish(0, b);
  EXPECT_EQ(last(1), std::vector<std::uint32_t>{2});
  log(0, legacy, 3);
  log(0, b, 4);
  log(0, per_thread, 5);
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, b));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, per_thread));
  g.open();
  finish(0, b);
  finish(0, per_thread);
  auto all = last(4);  // the last two have no order
  std::sort(all.begin() + 2, all.end());
  EXPECT_EQ(all, (std::vector<std::uint32_t>{1, 3, 4, 5}));
}

TEST_P(legacy_stream, m6_independent_streams_and_legacy_do_not_wait) {
  auto const s = stream(0), b = stream(0, stream_kind::blocking);
  {
    auto& g = hold(0, s);
    log(0, s, 1);
    log(0, legacy, 2);
    log(0, b, 3);
    log(0, per_thread, 4);
    finish(0, b);
    finish(0, per_thread);
    EXPECT_TRUE(has(2));
    EXPECT_FALSE(has(1));
    g.open();
    finish(0, s);
  }
  auto& g = hold(0, legacy);
  log(0, legacy, 5);
  log(0, s, 6);
  finish(0, s);
  EXPECT_FALSE(has(5));
  g.open();
  finish(0, legacy);
  EXPECT_TRUE(has(5));
}

// The record also waits for a held blocking stream.
TEST_P(legacy_stream, m6_a_legacy_record_covers_blocking_streams) {
  auto const s = stream(0), b = stream(0, stream_kind::blocking), c = stream(0, stream_kind::blocking);
  auto const e = event(0), f = event(0);
  auto& g = hold(0, b);
  log(0, b, 1);
  EXPECT_OK(machine().record(0, legacy, e));
  EXPECT_OK(machine().wait(0, s, e));
  log(0, s, 2);
  EXPECT_SAYS(code::not_ready, machine().query_event(e));
  g.open();
  finish(0, s);
  EXPECT_EQ(last(2), (std::vector<std::uint32_t>{1, 2}));
  auto& again = hold(0, s);
  log(0, s, 3);
  EXPECT_OK(machine().record(0, s, f));
  EXPECT_OK(machine().wait(0, legacy, f));
  log(0, c, 4);
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, c));
  again.open();
  finish(0, c);
  EXPECT_EQ(last(2), (std::vector<std::uint32_t>{3, 4}));
}

TEST_P(legacy_stream, m6_the_per_thread_stream_differs_by_thread) {
  auto& g = hold(0, per_thread);
  log(0, per_thread, 1);
  elsewhere([&] {
    log(0, per_thread, 2);
    finish(0, per_thread);
  });
  EXPECT_TRUE(has(2));
  EXPECT_FALSE(has(1));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, per_thread));
  g.open();
  finish(0, per_thread);
  EXPECT_TRUE(has(1));
}

TEST_P(legacy_stream, m6_devices_have_legacy_streams_of_their_own) {
  NEED_DEVICES(2);
  auto const b = stream(1, stream_kind::blocking);
  log(1, legacy, 1000);
  log(1, b, 1000);
  finish(1, b);
  auto& g = hold(1, b);
  log(1, b, 1);
  log(0, legacy, 2);
  finish(0, legacy);
  EXPECT_TRUE(has(2));
  log(1, legacy, 3);
  EXPECT_FALSE(has(3));
  g.open();
  finish(1, legacy);
  EXPECT_EQ(last(2), (std::vector<std::uint32_t>{1, 3}));
}

TEST_P(legacy_stream, m6_predefined_streams_are_not_destroyed) {
  EXPECT_SAYS(code::invalid, machine().destroy_stream(0, legacy));
  EXPECT_SAYS(code::invalid, machine().destroy_stream(0, per_thread));
  EXPECT_OK(machine().query_stream(0, legacy));
  EXPECT_OK(machine().query_stream(0, per_thread));
}

}  // namespace
}  // namespace weir::conformance
