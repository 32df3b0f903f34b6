// Large copies over shared links: every byte arrives, in stream order, whichever call is refused.
// Threads: one.
#include "peer/copy/stripes.h"

#include <cstdlib>

#include "tests/peer/machine_fixture.h"
#include "tests/support/on_purpose.h"
#include "tests/support/sanitized.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/pool.h"

namespace weir {
namespace {

using test::held;
using test::pattern;

constexpr std::size_t n = 24_MiB - 5;  // four chunks a lane, so that its slots are reused
constexpr std::size_t lane_bytes = peer::stripes::slots * peer::stripes::largest_chunk;

// One in `stride` calls is refused.
std::uint64_t const stride = tests::sanitized || std::getenv("WEIR_CHECK_RACES") ? 7 : 1;

// Copies go to and from gpu:0.
struct rig {
  explicit rig(simulated like = {.devices = 3, .memory = 256_MiB}, options o = {}) : m(like, o) {
    std::memcpy(there.data(), bytes.data(), n);
  }
  std::size_t held_by(int d) { return static_cast<std::size_t>(m.memory(d).statistics().allocated_bytes.all.current); }
  test::bytes_of_host came() const { return {back.data<std::byte>(), back.data<std::byte>() + n}; }
  void forget() { std::memset(back.data(), 0, n); }
  void round() {
    copy(s, on_gpu.data(), there.data(), n, non_blocking);
    copy(s, back.data(), on_gpu.data(), n);
  }
  void expect_valid() {
    for (int d = 0; d < m.get().device_count(); ++d)
      EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
    EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
    EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
  }

  test::machine m;
  stream s{device(0)};
  buffer on_gpu{n, {.on = device(0)}}, there = pinned(n), back = pinned(n);
  test::bytes_of_host const& bytes = first;
  static inline test::bytes_of_host const first = pattern(n, 1);
};
device const others[] = {1, 2};

TEST(stripes, every_byte_arrives_both_ways_over_lent_links) {
  rig r({.devices = 3, .memory = 256_MiB}, {.check_races = true});
  EXPECT_EQ(explain_copy(r.on_gpu.data(), r.there.data(), n).by, copy_route::engine) << "nothing is lent";
  link_sharing_guard const lent(others);
  auto const choice = explain_copy(r.on_gpu.data(), r.there.data(), n);
  EXPECT_EQ(choice.by, copy_route::striped);
  EXPECT_NE(choice.reason.find("shared devices"), std::string::npos) << choice.reason;
  EXPECT_EQ(explain_copy(r.back.data(), r.on_gpu.data(), n).by, copy_route::striped);
  EXPECT_EQ(explain_copy(r.on_gpu.data(), r.there.data(), peer::stripes::worth - 1).by, copy_route::engine)
      << "too small to be worth it";
  r.round();
  EXPECT_EQ(r.came(), r.bytes);
  for (int d : {1, 2})
    EXPECT_EQ(r.held_by(d), lane_bytes);
  for (int i = 0; i < 3; ++i) {
    r.forget();
    r.round();
    EXPECT_EQ(r.came(), r.bytes);
  }
  for (int d : {1, 2})
    EXPECT_EQ(r.held_by(d), lane_bytes) << "copies of one stream use the same lanes";
  EXPECT_EQ(race_reports().size(), 0u);
  r.expect_valid();
}

TEST(stripes, a_pool_sleeps_and_wakes_over_lent_links) {
  rig r({.devices = 3, .memory = 256_MiB}, {.check_races = true});
  pool model("model");
  void* const at = model.allocate(r.s, n);
  copy(r.s, at, r.there.data(), n);
  model.sleep(), model.wake();
  for (int d : {1, 2})
    EXPECT_EQ(r.held_by(d), 0u) << "nothing is lent";
  {
    link_sharing_guard const lent(others);
    model.sleep();
    for (int d : {1, 2})
      EXPECT_EQ(r.held_by(d), lane_bytes) << "from one handle";
    model.wake();
    model.sleep();
  }
  model.wake();
  copy(r.s, r.back.data(), at, n);
  EXPECT_EQ(r.came(), r.bytes);
  deallocate(at);
  EXPECT_EQ(race_reports().size(), 0u);
  r.expect_valid();
}

// The end of a graph's memory halts mapping, which a wake would wait for in itself.
TEST(stripes, lanes_are_made_before_a_wake_begins) {
  rig r;
  pool model("model");
  void* const at = model.allocate(r.s, n);
  copy(r.s, at, r.there.data(), n);
  model.sleep();
  {
    auto g = graph::capture(r.s, [&] { buffer const temporary(r.s, 5_MiB); });
    g.launch(r.s);
    r.s.synchronize();
  }
  link_sharing_guard const lent(others);
  model.wake();
  for (int d : {1, 2})
    EXPECT_EQ(r.held_by(d), lane_bytes);
  copy(r.s, r.back.data(), at, n);
  EXPECT_EQ(r.came(), r.bytes);
  deallocate(at);
}

// One driver call in the sleep, or the wake, is refused, whichever it is: the pool is whole, asleep or awake.
TEST(stripes, a_refused_call_leaves_a_pool_whole) {
  rig r;
  link_sharing_guard const lent(others);
  pool model("model");
  void* const at = model.allocate(r.s, n);
  copy(r.s, at, r.there.data(), n);
  model.sleep(), model.wake();
  for (std::uint64_t k = 1, failed = 1; failed; k += 3 * stride) {
    auto const number = r.m.control().fail_call("any", k, driver::code::failed);
    for (bool sleep : {true, false}) {
      try {
        sleep ? (void)model.sleep() : model.wake();
      } catch (error const&) {}
    }
    failed = !r.m.control().cancel_failure(number);
    if (model.is_asleep())
      model.wake();
    r.forget();
    copy(r.s, r.back.data(), at, n);
    ASSERT_EQ(r.came(), r.bytes) << "call " << k;
    r.expect_valid();
  }
  deallocate(at);
}

TEST(stripes, a_striped_copy_is_ordered_and_returns_at_once) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();  // makes the lanes
  r.forget();
  auto const second = pattern(n, 2);
  held gate(r.m, r.s);
  stamp const up = copy(r.s, r.on_gpu.data(), r.there.data(), n, non_blocking);
  stamp const down = copy(r.s, r.back.data(), r.on_gpu.data(), n, non_blocking);
  EXPECT_FALSE(up.query());
  EXPECT_FALSE(down.query());
  EXPECT_EQ(r.came(), test::bytes_of_host(n)) << "nothing has run";
  tests::reported_on_purpose();  // the target was read before its copy was waited for
  gate.open();
  down.synchronize();
  EXPECT_TRUE(up.query());
  EXPECT_EQ(r.came(), r.bytes);
  std::memcpy(r.there.data(), second.data(), n);  // after the stamp the host may write the source
  r.round();
  EXPECT_EQ(r.came(), second);
}

TEST(stripes, memory_freed_right_after_a_striped_copy_waits_for_it) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();
  held gate(r.m, r.s);
  void* const source = r.there.data();
  stamp const done = copy(r.s, r.on_gpu.data(), source, n, non_blocking);
  r.there.reset();
  buffer const next = pinned(n);
  EXPECT_NE(next.data(), source);
  gate.open();
  done.synchronize();
  EXPECT_EQ(test::read_back(r.on_gpu.data(), n, 0), r.bytes);
}

TEST(stripes, copies_of_two_streams_do_not_wait_for_each_other) {
  rig r;
  link_sharing_guard const lent(others);
  stream t{device(0)};
  buffer other(n, {.on = device(0)});
  r.round();
  held gate(r.m, r.s);
  stamp const waits = copy(r.s, r.on_gpu.data(), r.there.data(), n, non_blocking);
  t.wait(default_stream(device(0)));
  copy(t, other.data(), r.there.data(), n);  // returns, though the first copy is held
  EXPECT_FALSE(waits.query());
  EXPECT_EQ(r.held_by(1), 2 * lane_bytes);
  gate.open();
  waits.synchronize();
  EXPECT_EQ(test::read_back(other.data(), n, 0), r.bytes);
}

TEST(stripes, lanes_no_longer_lent_give_way_to_others) {
  rig r;
  constexpr std::size_t part = peer::stripes::worth;
  buffer const wide(peer::stripes::most_copies * part, {.on = device(0)});
  {
    device const one[] = {1};
    link_sharing_guard const lent(one);
    std::vector<stream> all;
    std::vector<std::unique_ptr<held>> gates;
    for (std::size_t i = 0; i < peer::stripes::most_copies; ++i) {
      stream const& s = all.emplace_back(device(0));
      s.wait(default_stream(device(0)));
      gates.push_back(std::make_unique<held>(r.m, s));
      copy(s, wide.data<std::byte>() + i * part, r.there.data(), part, non_blocking);
    }
    EXPECT_EQ(r.held_by(1), peer::stripes::most_copies * lane_bytes);
    gates.clear();
    for (stream const& s : all)
      s.synchronize();
  }
  device const other[] = {2};
  link_sharing_guard const lent(other);
  copy(r.s, r.on_gpu.data(), r.there.data(), n);
  EXPECT_EQ(r.held_by(1), (peer::stripes::most_copies - 1) * lane_bytes) << "no more go than are needed";
  EXPECT_EQ(r.held_by(2), lane_bytes);
}

TEST(stripes, without_lanes_or_memory_a_copy_goes_straight) {
  rig r({.devices = 2, .memory = 400_MiB});
  device const one[] = {1};
  link_sharing_guard const lent(one);
  r.m.control().consume_memory(1, 390_MiB);  // 10 MiB left: a lane needs 24
  r.round();
  EXPECT_EQ(r.came(), r.bytes);
  EXPECT_EQ(r.held_by(1), 0u);
  r.expect_valid();
}

TEST(stripes, links_that_are_refused_or_change_bytes_carry_nothing) {
  rig pairs({.devices = 4, .memory = 256_MiB, .peers = simulated::links::pairs});
  {
    device const two[] = {2};
    link_sharing_guard const lent(two);  // gpu:2, which gpu:0 cannot reach
    auto const choice = explain_copy(pairs.on_gpu.data(), pairs.there.data(), n);
    EXPECT_EQ(choice.by, copy_route::engine);
    EXPECT_NE(choice.reason.find("no shared device"), std::string::npos);
    EXPECT_THROW(([&] {
                   route_guard const by(copy_route::striped);
                   copy(pairs.on_gpu.data(), pairs.there.data(), n);
                 }()),
                 invalid_use);
    pairs.round();
    EXPECT_EQ(pairs.came(), pairs.bytes);
  }
  rig r;
  r.m.control().corrupt(0, 1);
  r.m.control().corrupt(1, 0);
  link_sharing_guard const lent(others);
  r.round();
  EXPECT_EQ(r.came(), r.bytes);
  EXPECT_EQ(r.held_by(1), 0u) << "found out before it carried anything";
  EXPECT_EQ(r.held_by(2), lane_bytes);
}

TEST(stripes, a_lost_lent_device_carries_no_more) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();
  r.m.control().lose_device(1);
  EXPECT_THROW(synchronize(device(1)), device_lost);
  for (int i = 0; i < 2; ++i) {
    r.forget();
    r.round();
    EXPECT_EQ(r.came(), r.bytes);
  }
}

TEST(stripes, the_devices_own_loss_is_said) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();
  r.m.control().lose_device(0);
  EXPECT_THROW(copy(r.s, r.on_gpu.data(), r.there.data(), n), device_lost);
}

TEST(stripes, a_captured_stream_takes_the_straight_way) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();
  auto& line = streams::clock_of(r.s);
  auto& machine = r.m.driver();
  ASSERT_TRUE(machine.begin_capture(0, line.handle(), driver::capture_mode::global).ok());
  copy(r.s, r.on_gpu.data(), r.there.data(), n, non_blocking);
  auto const graph = machine.end_capture(0, line.handle());
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(machine.destroy_graph(graph.value).ok());
}

TEST(stripes, refusals_are_equal_with_and_without_lent_links) {
  rig r;
  link_sharing_guard const lent(others);
  r.round();
  EXPECT_THROW(copy(r.s, r.on_gpu.data(), r.there.data(), n + 1), invalid_use);
  EXPECT_THROW(weir::copy(r.s, r.on_gpu.data<std::byte>() + 1, r.there.data(), n), invalid_use);
  stream other{device(1)};
  EXPECT_THROW(copy(other, r.on_gpu.data(), r.there.data(), n), invalid_use);
  device const host[] = {cpu};
  EXPECT_THROW(link_sharing_guard{host}, invalid_use);
  device const none[] = {7};
  EXPECT_THROW(link_sharing_guard{none}, invalid_use);
  {
    route_guard const straight(copy_route::engine);
    EXPECT_EQ(explain_copy(r.on_gpu.data(), r.there.data(), n).by, copy_route::engine);
  }
  EXPECT_EQ(test::read_back(r.on_gpu.data(), n, 0), r.bytes);
}

// Returns: whether the k-th call from now was made, and refused.
bool refuse_one(rig& r, std::uint64_t k, int& absorbed) {
  r.forget();
  auto const order = r.m.control().fail_call("any", k, driver::code::failed);
  bool thrown = false;
  try {
    r.round();
  } catch (driver_error const&) {
    thrown = true;
  } catch (out_of_memory const&) {
    thrown = true;
  }
  bool const reached = !r.m.control().cancel_failure(order);
  EXPECT_TRUE(thrown || r.came() == r.bytes) << "call " << k;
  absorbed += reached && !thrown;
  r.forget();
  r.round();
  EXPECT_EQ(r.came(), r.bytes) << "after call " << k;
  r.s.synchronize();
  r.expect_valid();
  return reached;
}

TEST(stripes, any_call_refused_leaves_a_repeatable_copy) {
  int absorbed = 0;
  device const one[] = {1};
  rig r({.devices = 2, .memory = 256_MiB});
  link_sharing_guard const lent(one);
  r.round();
  for (std::uint64_t k = 1; refuse_one(r, k, absorbed); k += stride) {
    if (testing::Test::HasFailure())
      return;
  }
  EXPECT_GT(absorbed, stride > 1 ? 1 : 10) << "a lane that refuses is left out";
}

TEST(stripes, refused_lanes_leave_the_direct_path) {
  int absorbed = 0;
  device const one[] = {1};
  for (std::uint64_t k = 1; k <= 50; k += 2 * stride) {
    rig r({.devices = 2, .memory = 256_MiB});
    link_sharing_guard const lent(one);
    refuse_one(r, k, absorbed);
    if (testing::Test::HasFailure())
      return;
  }
  EXPECT_GT(absorbed, stride > 1 ? 0 : 5);
}

TEST(stripes, under_any_schedule_the_bytes_are_right) {
  for (auto const seed : tests::seeds("stripes", 100, 0, 20)) {
    rig r({.devices = 3, .memory = 256_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
          {.check_races = true});
    link_sharing_guard const lent(others);
    stream t{device(0)};
    buffer other(n, {.on = device(0)}), out = pinned(n);
    copy(r.s, r.on_gpu.data(), r.there.data(), n, non_blocking);
    t.wait(r.s);
    copy(t, other.data(), r.on_gpu.data(), n, non_blocking);
    copy(r.s, r.back.data(), r.on_gpu.data(), n, non_blocking);
    copy(t, out.data(), other.data(), n, non_blocking);
    r.s.synchronize();
    t.synchronize();
    EXPECT_EQ(r.came(), r.bytes) << "seed " << seed;
    EXPECT_EQ(std::memcmp(out.data(), r.bytes.data(), n), 0) << "seed " << seed;
    EXPECT_EQ(race_reports().size(), 0u) << "seed " << seed;
  }
}

// The copy's stream is then not ordered after the lane.
TEST(stripes, memory_freed_after_a_broken_copy_waits_for_lanes) {
  rig r({.devices = 2, .memory = 256_MiB, .schedule = simulated::scheduling::stepped});
  device const one[] = {1};
  link_sharing_guard const lent(one);
  stream_guard const on(r.s);
  buffer target(n, {.on = device(0)});
  struct counter final : driver::fault_injector::watcher {
    void comes(driver::call c) noexcept override { waits += c == driver::call::wait; }
    std::uint64_t waits = 0;
  } seen;
  auto& driver = *driver::fault_injector_of(r.m.driver());
  for (int i = 0; i < 3; ++i) {  // the first makes the lanes
    seen.waits = 0;
    driver.watch(&seen);
    copy(r.s, target.data(), r.there.data(), n, non_blocking);
    driver.watch(nullptr);
    r.s.synchronize();
  }
  using driver::call, driver::fault_injector;
  // The last two waits order the copy's stream after the lanes.
  driver.refuse({.of = call::wait, .k = seen.waits - 1, .more = fault_injector::without_end});
  for (call const c : {call::synchronize_event, call::synchronize_stream})
    driver.refuse({.of = c, .more = fault_injector::without_end});
  EXPECT_THROW(copy(r.s, target.data(), r.there.data(), n, non_blocking), driver_error);
  driver.forget_orders();
  void const* const at = target.data();
  target.reset();
  EXPECT_NE(buffer(n, {.on = device(0)}).data(), at) << "the lent device has yet to write there";
  r.m.control().run();
  EXPECT_EQ(r.m.control().findings(), std::vector<std::string>{});
}

TEST(stripes, a_copy_refused_half_way_releases_host_memory) {
  rig r({.devices = 3, .memory = 256_MiB, .schedule = simulated::scheduling::stepped, .seed = 1});
  link_sharing_guard const lent(others);
  r.round();
  int thrown = 0;
  for (std::uint64_t k = 1; k <= 40; ++k) {
    auto const order = r.m.control().fail_call("copy", k, driver::code::failed);
    try {
      copy(r.s, r.on_gpu.data(), r.there.data(), n, non_blocking);
    } catch (driver_error const&) {
      ++thrown;
      EXPECT_TRUE(r.s.ref().query()) << "call " << k;
    }
    r.m.control().cancel_failure(order);
    r.s.synchronize();
  }
  EXPECT_GT(thrown, 0);
}

}  // namespace
}  // namespace weir
