// Rule M17 of docs/reference/simulated-machine.md, on every machine: what a launched graph does, and how long it lives.
// Threads: one.
#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class graphs : public conformance {};
WEIR_CONFORMANCE(graphs);

TEST_P(graphs, m17_a_capture_spreads_over_devices) {
  NEED_DEVICES(2);
  auto const s = stream(0), t = stream(1);
  auto const e = event(0), f = event(1);
  auto const graph = captured(0, s, [&] {
    log(0, s, 1);
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(1, t, e));
    log(1, t, 2);
    EXPECT_OK(machine().record(1, t, f));
    EXPECT_OK(machine().wait(0, s, f));
    log(0, s, 3);
  });
  EXPECT_OK(machine().launch_graph(0, s, graph));
  finish(0, s);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_SAYS(code::invalid, machine().launch_graph(1, t, graph));
}

TEST_P(graphs, m17_branches_see_the_bytes_before_their_capture) {
  auto const s = stream(0), t = stream(0);
  auto const e = event(0), f = event(0);
  auto const b = memory(0);
  write(b, 5);
  auto const graph = captured(0, s, [&] {
    copy_word(0, s, b.words() + 1, b.words());
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(0, t, e));
    copy_word(0, t, b.words() + 2, b.words() + 1);
    copy_word(0, s, b.words() + 3, b.words() + 1);
    EXPECT_OK(machine().record(0, t, f));
    EXPECT_OK(machine().wait(0, s, f));
    copy_word(0, s, b.words() + 4, b.words() + 2);
    copy_word(0, s, b.words() + 5, b.words() + 3);
  });
  for (std::uint32_t k = 6; k < 9; ++k) {
    EXPECT_OK(machine().fill(0, s, b.words(), k, 4, 1));
    EXPECT_OK(machine().launch_graph(0, s, graph));
    finish(0, s);
    EXPECT_EQ(read(b, 4), k);
    EXPECT_EQ(read(b, 5), k);
  }
}

TEST_P(graphs, m17_a_launch_is_one_operation_of_its_stream) {
  auto const s = stream(0), t = stream(0), other = stream(0);
  auto const e = event(0), inside = event(0), joined = event(0);
  auto const graph = captured(0, s, [&] {
    EXPECT_OK(machine().record(0, s, inside));
    EXPECT_OK(machine().wait(0, t, inside));
    log(0, t, 2);
    EXPECT_OK(machine().record(0, t, joined));
    EXPECT_OK(machine().wait(0, s, joined));
  });
  auto const first = captured(0, s, [&] { log(0, s, 9); });
  EXPECT_OK(machine().launch_graph(0, other, first));  // the first of its kind may block
  EXPECT_OK(machine().launch_graph(0, other, graph));
  finish(0, other);
  auto& g = hold(0, other);
  log(0, other, 1);
  EXPECT_OK(machine().launch_graph(0, other, graph));
  EXPECT_OK(machine().record(0, other, e));
  EXPECT_OK(machine().wait(0, s, e));
  log(0, s, 3);
  EXPECT_OK(machine().launch_graph(0, t, first));  // t's capture is over
  finish(0, t);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{9, 2, 9}));
  EXPECT_SAYS(code::not_ready, machine().query_event(e));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
  g.open();
  finish(0, s);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{9, 2, 9, 1, 2, 3}));
}

// Launches of two executables are not ordered.
TEST_P(graphs, m17_launches_of_one_executable_are_ordered) {
  auto const a = stream(0), b = stream(0), c = stream(0);
  auto const once = captured(0, a, [&] { log(0, a, 1); });
  auto const twice = captured(0, a, [&] { log(0, a, 2); });
  for (auto const each : {once, twice})
    EXPECT_OK(machine().launch_graph(0, c, each));
  finish(0, c);
  auto& g = hold(0, a);
  EXPECT_OK(machine().launch_graph(0, a, once));
  EXPECT_OK(machine().launch_graph(0, b, once));
  EXPECT_OK(machine().launch_graph(0, c, twice));
  finish(0, c);
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, b));
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 2}));
  g.open();
  finish(0, b);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 2, 1, 1}));
}

TEST_P(graphs, m17_a_launch_on_a_blocking_stream_keeps_legacy_order) {
  auto const s = stream(0, stream_kind::blocking);
  constexpr auto legacy = stream_handle::legacy;
  log(0, legacy, 1);
  auto const graph = captured(0, s, [&] { log(0, s, 2); });
  EXPECT_OK(machine().launch_graph(0, s, graph));
  finish(0, s);
  auto& g = hold(0, legacy);
  EXPECT_OK(machine().launch_graph(0, s, graph));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
  g.open();
  log(0, legacy, 3);
  finish(0, legacy);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 2, 3}));
}

TEST_P(graphs, m17_destruction_under_way_cancels_nothing) {
  auto const s = stream(0);
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
  for (std::uint32_t k = 0; k < 4; ++k)
    log(0, s, k);
  auto const kept = machine().end_capture(0, s);
  ASSERT_OK(kept.is);
  auto const once = machine().instantiate(0, kept.value), again = machine().instantiate(0, kept.value);
  ASSERT_OK(once.is);
  ASSERT_OK(again.is);
  EXPECT_OK(machine().launch_graph(0, s, again.value));  // the first of its kind may block
  finish(0, s);
  auto& g = hold(0, s);
  EXPECT_OK(machine().launch_graph(0, s, once.value));
  EXPECT_OK(machine().destroy_executable(once.value));
  EXPECT_OK(machine().destroy_graph(kept.value));
  g.open();
  finish(0, s);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_OK(machine().launch_graph(0, s, again.value));
  finish(0, s);
  EXPECT_EQ(logged().size(), 12u);
  EXPECT_OK(machine().destroy_executable(again.value));
}

TEST_P(graphs, m17_captured_work_is_dropped_once_with_its_last_user) {
  if (on_cuda())
    GTEST_SKIP() << "work behind the seam is the simulated machine's; a GPU's kernels own nothing";
  auto const s = stream(0);
  struct counts {
    int runs = 0, drops = 0;
  } n;
  driver::work w;
  w.run = [](void* p) { ++static_cast<counts*>(p)->runs; };
  w.drop = [](void* p) { ++static_cast<counts*>(p)->drops; };
  w.state = &n;
  auto const graph = captured(0, s, [&] { EXPECT_OK(machine().enqueue(0, s, {}, w)); });
  for (int i = 0; i < 3; ++i)
    EXPECT_OK(machine().launch_graph(0, s, graph));
  finish(0, s);
  EXPECT_EQ(n.runs, 3);
  EXPECT_EQ(n.drops, 0);
  auto& g = hold(0, s);
  EXPECT_OK(machine().launch_graph(0, s, graph));
  EXPECT_OK(machine().destroy_executable(graph));
  EXPECT_EQ(n.drops, 0);
  g.open();
  EXPECT_OK(machine().synchronize_device(0));
  EXPECT_EQ(n.runs, 4);
  EXPECT_EQ(n.drops, 1);
  EXPECT_OK(machine().begin_capture(0, s, capture_mode::global));
  EXPECT_OK(machine().enqueue(0, s, {}, w));
  EXPECT_SAYS(code::not_permitted, machine().query_stream(0, s));
  EXPECT_SAYS(code::not_permitted, machine().enqueue(0, s, {}, w));
  EXPECT_EQ(n.drops, 2);
  EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
  EXPECT_EQ(n.drops, 3);
  EXPECT_EQ(n.runs, 4);
}

// Counts the drops of what a graph keeps; on GPUs they come on a thread of the driver's.
struct kept_by_a_graph {
  std::atomic<int> drops{0};
  static void drop(void* p) { ++static_cast<kept_by_a_graph*>(p)->drops; }
  status are(int n) const { return drops == n ? status{} : status{code::not_ready}; }
};

TEST_P(graphs, m17_a_capture_has_a_number_of_its_own) {
  auto const s = stream(0), t = stream(0), other = stream(0);
  auto const e = event(0), f = event(0);
  std::uint64_t first = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(machine().capture_of(0, s).value, 0u);
    (void)captured(0, s, [&] {
      auto const here = machine().capture_of(0, s);
      EXPECT_OK(here.is);
      EXPECT_NE(here.value, 0u);
      EXPECT_NE(here.value, first);
      first = here.value;
      EXPECT_EQ(machine().capture_of(0, other).value, 0u);
      EXPECT_OK(machine().record(0, s, e));
      EXPECT_OK(machine().wait(0, t, e));
      EXPECT_EQ(machine().capture_of(0, t).value, here.value);
      ASSERT_OK(machine().begin_capture(0, other, capture_mode::global));
      EXPECT_NE(machine().capture_of(0, other).value, 0u);
      EXPECT_NE(machine().capture_of(0, other).value, here.value);
      auto const beside = machine().end_capture(0, other);
      EXPECT_OK(beside.is);
      EXPECT_OK(machine().destroy_graph(beside.value));
      EXPECT_OK(machine().record(0, t, f));
      EXPECT_OK(machine().wait(0, s, f));
    });
  }
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::relaxed));
  EXPECT_SAYS(code::not_permitted, machine().query_stream(0, s));
  EXPECT_SAYS(code::not_permitted, machine().capture_of(0, s).is);
  EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
  EXPECT_EQ(machine().capture_of(0, s).value, 0u);
}

TEST_P(graphs, m17_what_a_graph_keeps_outlives_its_launches) {
  auto const s = stream(0), t = stream(0);
  auto const b = memory(0);
  kept_by_a_graph k;
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
  EXPECT_OK(machine().keep_with_graph(0, s, kept_by_a_graph::drop, &k));
  EXPECT_OK(machine().fill(0, s, b.words(), 7, 4, 1));
  auto const kept = machine().end_capture(0, s);
  ASSERT_OK(kept.is);
  auto const x = machine().instantiate(0, kept.value);
  ASSERT_OK(x.is);
  EXPECT_OK(machine().destroy_graph(kept.value));
  EXPECT_OK(machine().launch_graph(0, t, x.value));  // the first of its kind may block
  finish(0, t);
  EXPECT_EQ(k.drops, 0);
  auto& g = hold(0, s);
  EXPECT_OK(machine().launch_graph(0, s, x.value));
  EXPECT_OK(machine().destroy_executable(x.value));
  std::this_thread::sleep_for(std::chrono::milliseconds(on_cuda() ? 50 : 1));
  EXPECT_EQ(k.drops, 0) << "a launch may still use it";
  g.open();
  finish(0, s);
  EXPECT_TRUE(becomes(code::ok, [&] { return k.are(1); }));
}

TEST_P(graphs, m17_what_is_kept_goes_with_a_graph_never_launched) {
  auto const s = stream(0);
  kept_by_a_graph k, of_failed, refused;
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::this_thread));
  EXPECT_OK(machine().keep_with_graph(0, s, kept_by_a_graph::drop, &k));
  auto const kept = machine().end_capture(0, s);
  ASSERT_OK(kept.is);
  EXPECT_EQ(k.drops, 0);
  EXPECT_OK(machine().destroy_graph(kept.value));
  EXPECT_TRUE(becomes(code::ok, [&] { return k.are(1); }));

  ASSERT_OK(machine().begin_capture(0, s, capture_mode::relaxed));
  EXPECT_OK(machine().keep_with_graph(0, s, kept_by_a_graph::drop, &of_failed));
  EXPECT_SAYS(code::not_permitted, machine().query_stream(0, s));  // spoils it
  EXPECT_SAYS(code::not_permitted, machine().keep_with_graph(0, s, kept_by_a_graph::drop, &refused));
  EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
  EXPECT_TRUE(becomes(code::ok, [&] { return of_failed.are(1); }));
  EXPECT_SAYS(code::not_permitted, machine().keep_with_graph(0, s, kept_by_a_graph::drop, &refused));
  EXPECT_EQ(refused.drops, 2);
}

TEST_P(graphs, m17_an_update_changes_later_launches) {
  auto const s = stream(0);
  auto const b = memory(0);
  kept_by_a_graph first_keeps, second_keeps;
  auto const capture = [&](std::uint32_t value, int fills, kept_by_a_graph* keeps) {
    EXPECT_OK(machine().begin_capture(0, s, capture_mode::global));
    if (keeps) {
      EXPECT_OK(machine().keep_with_graph(0, s, kept_by_a_graph::drop, keeps));
    }
    for (int i = 0; i < fills; ++i)
      EXPECT_OK(machine().fill(0, s, b.words() + i, value, 4, 1));
    auto const kept = machine().end_capture(0, s);
    EXPECT_OK(kept.is);
    return kept.value;
  };
  auto const first = capture(5, 1, &first_keeps), second = capture(6, 1, &second_keeps), other = capture(9, 3, nullptr);
  auto const x = machine().instantiate(0, first);
  ASSERT_OK(x.is);
  EXPECT_OK(machine().destroy_graph(first));
  EXPECT_OK(machine().launch_graph(0, s, x.value));
  finish(0, s);
  EXPECT_EQ(read(b), 5u);
  auto& g = hold(0, s);
  EXPECT_OK(machine().launch_graph(0, s, x.value));
  EXPECT_OK(machine().copy(0, s, b.words() + 1, b.words(), 4));
  EXPECT_SAYS(code::not_supported, machine().update(0, x.value, other));
  EXPECT_OK(machine().update(0, x.value, second));
  for (graph_handle const one : {second, other})
    EXPECT_OK(machine().destroy_graph(one));
  EXPECT_SAYS(code::invalid, machine().update(0, x.value, second));
  EXPECT_OK(machine().launch_graph(0, s, x.value));
  EXPECT_OK(machine().destroy_executable(x.value));
  std::this_thread::sleep_for(std::chrono::milliseconds(on_cuda() ? 50 : 1));
  EXPECT_EQ(first_keeps.drops + second_keeps.drops, 0);
  g.open();
  finish(0, s);
  EXPECT_EQ(read(b, 1), 5u) << "the launch before the update";
  EXPECT_EQ(read(b), 6u);
  EXPECT_TRUE(becomes(code::ok, [&] { return first_keeps.are(1); }));
  EXPECT_TRUE(becomes(code::ok, [&] { return second_keeps.are(1); }));
}

TEST_P(graphs, m17_a_lost_device_ends_its_captures) {
  if (!alone())
    return;
  auto const s = stream(0), other = stream(0);
  auto const graph = captured(0, s, [&] { log(0, s, 1); });
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::relaxed));
  log(0, s, 2);
  crash(0, other);
  EXPECT_SAYS(code::lost, machine().end_capture(0, s).is);
  EXPECT_SAYS(code::lost, machine().begin_capture(0, other, capture_mode::relaxed));
  EXPECT_SAYS(code::lost, machine().launch_graph(0, other, graph));
  EXPECT_TRUE(logged().empty());
}

}  // namespace
}  // namespace weir::conformance
