// The order inside a capture: lanes, and keepers, which have no stream.
// Threads: one.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/clock/rig.h"

namespace weir::clock {
namespace {

using driver::code;

struct lanes : testing::Test, rig {
  void TearDown() override { EXPECT_EQ(all.validate(), std::vector<std::string>{}); }
  void begin(stream_clock& on) {
    ASSERT_TRUE(machine->begin_capture(0, on.handle(), driver::capture_mode::relaxed).ok());
  }
  void end(stream_clock& on) {
    auto const g = machine->end_capture(0, on.handle());
    EXPECT_TRUE(g.ok());
    EXPECT_TRUE(machine->destroy_graph(g.value).ok());
  }
  static stream_clock& lane_of(stream_clock& s) { return *s.lane().value; }
};

TEST_F(lanes, a_lane_is_ordered_by_what_happens_inside) {
  auto &a = stream(), &b = stream(), &outside = stream();
  begin(a);
  stream_clock& on_a = lane_of(a);
  EXPECT_EQ(on_a.stands_for(), &a);
  EXPECT_EQ(&lane_of(a), &on_a);
  stamp const before = on_a.now();
  ASSERT_TRUE(b.join(a).ok());
  stream_clock& on_b = lane_of(b);
  EXPECT_EQ(on_b.capture(), on_a.capture());
  stamp const after = on_a.now(), there = on_b.now();
  EXPECT_TRUE(on_b.covers(before));
  EXPECT_FALSE(on_b.covers(after)) << "it comes after the fork";
  EXPECT_FALSE(on_a.covers(there));
  auto const event = all.take_event(0, driver::event_kind::order_only);
  auto const f = b.record(event.value);
  ASSERT_TRUE(f.ok());
  EXPECT_FALSE(on_a.covers(there));
  ASSERT_TRUE(a.wait(f.value, b).ok());
  EXPECT_TRUE(on_a.covers(there));
  EXPECT_FALSE(on_a.covers(on_b.now()));
  EXPECT_FALSE(on_a.covers(outside.now())) << "nothing outside is ordered before what is inside";
  EXPECT_FALSE(outside.covers(before));
  end(a);
  all.capture_ended(on_a.capture());
  for (stamp const s : {before, after, there})
    EXPECT_TRUE(all.complete(s));
  EXPECT_EQ(a.known_lane(), nullptr);
  EXPECT_EQ(a.lane().value, nullptr);
}

TEST_F(lanes, a_new_capture_has_new_lanes) {
  auto& a = stream();
  begin(a);
  stream_clock& first = lane_of(a);
  end(a);
  EXPECT_FALSE(all.complete(first.now())) << "nothing has said so yet";
  begin(a);
  EXPECT_NE(&lane_of(a), &first);
  EXPECT_TRUE(all.complete(first.now()));
  end(a);
  EXPECT_EQ(a.lane().value, nullptr);
  EXPECT_EQ(first.alive(), life::retired);
}

// Ended lanes of the other devices must not hide those of this one, however many there are.
TEST_F(lanes, of_several_devices_are_used_again) {
  stream_clock* const on[] = {&stream(0), &stream(1)};
  std::mt19937 random(1);
  std::set<stream_clock*> made;
  for (int i = 0; i < 20'000; ++i) {
    int const d = static_cast<int>(random() % 2);
    stream_clock& s = *on[d];
    ASSERT_TRUE(machine->begin_capture(d, s.handle(), driver::capture_mode::relaxed).ok());
    stream_clock& lane = lane_of(s);
    made.insert(&lane);
    auto const g = machine->end_capture(d, s.handle());
    ASSERT_TRUE(g.ok());
    ASSERT_TRUE(machine->destroy_graph(g.value).ok());
    all.capture_ended(lane.capture());
  }
  EXPECT_LE(made.size(), 2 * (clocks::kept_ended + 1));
}

// A block keeps the ended stream that it came from. Many of these in turn must not hide those that nothing keeps.
TEST_F(lanes, are_used_again_among_many_that_are_held) {
  stream_clock& s = stream();
  std::vector<std::shared_ptr<void const>> held;
  std::set<stream_clock*> made;
  for (int i = 0; i < 20'000; ++i) {
    begin(s);
    stream_clock& lane = lane_of(s);
    made.insert(&lane);
    if (i < 400)
      held.push_back(lane.hold());
    end(s);
    all.capture_ended(lane.capture());
  }
  EXPECT_LE(made.size(), 1000u);
}

TEST_F(lanes, lanes_and_keepers_ask_the_driver_nothing) {
  auto &a = stream(), &other = stream();
  stream_clock& keeper = all.make_keeper(0);
  begin(a);
  stream_clock& on_a = lane_of(a);
  machine->in_record = machine->in_wait = machine->in_query = [] { ADD_FAILURE() << "a driver call"; };
  for (stream_clock* const l : {&on_a, &keeper}) {
    EXPECT_EQ(l->fence().is.what, code::not_permitted);
    EXPECT_FALSE(all.poll(l->now()).value);
    EXPECT_EQ(all.synchronize(l->now()).what, code::not_permitted);
    EXPECT_EQ(other.wait(l->now()).what, code::not_permitted);
    EXPECT_EQ(l->wait(other.now()).what, code::not_permitted);
  }
  machine->in_record = machine->in_wait = machine->in_query = nullptr;
  end(a);
  EXPECT_EQ(a.lane().value, nullptr);
  ASSERT_TRUE(all.synchronize_device(0).ok());
  EXPECT_FALSE(all.complete(keeper.now())) << "the work of a device says nothing of what is kept";
  all.let_go(keeper);
  EXPECT_TRUE(all.complete(keeper.now()));
  EXPECT_EQ(all.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir::clock
