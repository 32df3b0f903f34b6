// Graphs under the checker: their parts against each other, and launches against all other work.
// Threads: one.
#include <sys/mman.h>

#include "tests/check/bench.h"

namespace weir::driver::check {
namespace {

using all = std::vector<kind>;

struct graphs : bench {
  stream_handle const s = stream(), t = stream(), u = stream();
  address const x = memory(), y = memory();

  void begin(stream_handle on) { ASSERT_TRUE(machine->begin_capture(0, on, capture_mode::relaxed).ok()); }
  executable_handle end(stream_handle on) {
    auto const g = machine->end_capture(0, on);
    EXPECT_TRUE(g.ok());
    auto const ready = machine->instantiate(0, g.value);
    EXPECT_TRUE(machine->destroy_graph(g.value).ok());
    return ready.value;
  }
  void launch(executable_handle g, stream_handle on) { EXPECT_TRUE(machine->launch_graph(0, on, g).ok()); }
  executable_handle writer() {
    begin(s);
    write(s, x);
    return end(s);
  }
};

TEST_F(graphs, captured_work_is_no_use_until_its_launch) {
  write(t, x);
  auto const g = writer();
  EXPECT_EQ(kinds(), all{}) << text();
  launch(g, s);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
  EXPECT_NE(text().find("fill writes them on stream 2 of gpu:0, graph launch writes them on stream 1 of gpu:0"),
            std::string::npos)
      << text();
}

TEST_F(graphs, a_launch_is_one_operation_of_its_stream) {
  auto const g = writer();
  write(t, x);
  order(t, s);
  launch(g, s);
  read(s, x);
  order(s, t);
  read(t, x);
  EXPECT_EQ(kinds(), all{}) << text();
  launch(g, t);
  read(u, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(graphs, a_launch_counts_at_the_launch_not_the_capture) {
  auto const g = writer();
  launch(g, t);
  read(s, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(graphs, launches_are_ordered_within_one_executable_only) {
  auto const g = writer();
  launch(g, s);
  launch(g, t);
  launch(g, u);
  read(u, x);
  EXPECT_EQ(kinds(), all{}) << "all launches of one are in order: " << text();
  read(t, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << "u's launch is not before what t does: " << text();
}

TEST_F(graphs, work_before_an_earlier_launch_precedes_the_later_one) {
  auto const g = writer();
  write(s, y);
  launch(g, s);
  launch(g, t);
  read(t, y);
  EXPECT_EQ(kinds(), all{}) << text();
  read(u, y);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(graphs, two_executables_of_the_same_work_are_not_ordered) {
  auto const g = writer();
  auto const h = writer();
  launch(g, s);
  launch(h, t);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(graphs, a_refused_launch_orders_nothing) {
  auto const g = writer();
  launch(g, s);
  sim->fail_call("launch_graph", 1, code::failed);
  EXPECT_FALSE(machine->launch_graph(0, t, g).ok());
  read(t, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(graphs, unordered_parts_race_at_capture) {
  for (bool const right : {true, false}) {
    begin(s);
    write(s, y);
    order(s, t);  // t joins
    write(t, x);
    if (right)
      order(t, s);
    read(s, x);
    if (!right)
      order(t, s);
    (void)end(s);
    EXPECT_EQ(kinds(), right ? all{} : all{kind::race}) << text();
  }
  EXPECT_NE(
      text().find("fill writes them on stream 2 of gpu:0, enqueue reads them on stream 1 of gpu:0, both in one graph"),
      std::string::npos)
      << text();
}

TEST_F(graphs, a_race_inside_a_graph_is_reported_once) {
  begin(s);
  write(s, y);
  order(s, t);
  write(t, x);
  write(s, x);
  order(t, s);
  auto const g = end(s);
  for (int i = 0; i < 3; ++i)
    launch(g, i % 2 ? u : s);
  auto const found = judge->findings();
  ASSERT_EQ(found.size(), 1u) << text();
  EXPECT_EQ(found[0].times, 1u);
}

TEST_F(graphs, order_inside_a_capture_is_none_outside) {
  begin(s);
  write(s, y);
  order(s, t);
  write(t, y);
  order(t, s);
  (void)end(s);
  write(s, x);
  read(t, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << "t waited for s in the graph alone: " << text();
}

TEST_F(graphs, an_event_recorded_again_outside_is_an_event_outside) {
  auto const e = event();
  begin(s);
  write(s, y);
  EXPECT_TRUE(machine->record(0, s, e).ok());
  (void)end(s);
  write(s, x);
  EXPECT_TRUE(machine->record(0, s, e).ok());
  EXPECT_TRUE(machine->wait(0, t, e).ok());
  read(t, x);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(graphs, a_spoiled_capture_leaves_nothing) {
  begin(s);
  write(s, x);
  EXPECT_FALSE(machine->query_stream(0, s).ok());
  EXPECT_FALSE(machine->end_capture(0, s).ok());
  write(t, x);
  EXPECT_EQ(kinds(), all{}) << text();
  write(s, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << "captured no longer: " << text();
}

TEST_F(graphs, a_graph_that_uses_a_freed_block_is_reported) {
  begins(s, x, 256, 10);
  auto const g = writer();
  launch(g, s);
  ends({{0, s}}, x, 256, 11);
  EXPECT_EQ(kinds(), all{}) << text();
  launch(g, s);
  EXPECT_EQ(kinds(), (all{kind::use_after_free})) << text();
  EXPECT_NE(text().find("graph launch writes bytes 0-63 of block 1"), std::string::npos) << text();
}

TEST_F(graphs, a_block_given_back_while_a_launch_uses_it_is_named) {
  begins(s, x, 256, 10);
  auto const g = writer();
  order(s, t);
  launch(g, t);
  ends({{0, s}}, x, 256, 11);
  EXPECT_EQ(kinds(), (all{kind::freed_in_use})) << text();
}

TEST_F(graphs, a_pinned_source_is_in_use_from_launch_to_end) {
  auto* const host =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_TRUE(machine->pin(host, 4096).ok());
  begin(s);
  EXPECT_TRUE(machine->copy(0, s, reinterpret_cast<void*>(x), host, 100).ok());
  auto const g = end(s);
  for (int i = 0; i < 3; ++i) {
    host[0] = static_cast<char>(i);
    launch(g, s);
    EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  }
  EXPECT_EQ(kinds(), all{}) << text();
  launch(g, s);
  host[0] = 77;
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(kinds(), (all{kind::source_changed})) << text();
  EXPECT_TRUE(machine->unpin(host).ok());
  ::munmap(host, 4096);
}

// The legacy stream -----------------------------------------------------------------------------------------

struct legacy : bench {
  static constexpr auto of_cuda = stream_handle::legacy;
  stream_handle const a = stream(0, stream_kind::blocking), b = stream(0, stream_kind::blocking), apart = stream();
  address const x = memory();
  bool complete(stream_handle s, std::uint64_t n) { return judge->complete({judge->position(0, s).stream, n}); }
};

TEST_F(legacy, it_comes_after_blocking_streams_and_they_after_it) {
  write(a, x);
  write(of_cuda, x);
  read(b, x);
  read(a, x);
  write(of_cuda, x);
  write(stream_handle::per_thread, x);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(legacy, it_orders_two_blocking_streams) {
  write(a, x);
  EXPECT_TRUE(machine->enqueue(0, of_cuda, {}, {}).ok());
  write(b, x);
  EXPECT_EQ(kinds(), all{}) << text();
  read(a, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(legacy, an_independent_stream_is_not_ordered_with_it) {
  write(apart, x);
  write(of_cuda, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
  EXPECT_TRUE(machine->synchronize_stream(0, of_cuda).ok());
  read(apart, x);
  EXPECT_EQ(kinds().size(), 1u) << "the host saw it complete: " << text();
}

TEST_F(legacy, the_stream_of_another_device_is_not_ordered_with_it) {
  auto const far = stream(1, stream_kind::blocking);
  write(far, x, 64, 1);
  write(of_cuda, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(legacy, a_blocking_streams_end_covers_no_later_legacy_work) {
  write(a, x);
  write(of_cuda, x);
  EXPECT_TRUE(machine->synchronize_stream(0, a).ok());
  EXPECT_TRUE(complete(a, 1));
  EXPECT_FALSE(complete(of_cuda, 1));
  read(apart, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(legacy, its_end_covers_no_later_work_of_blocking_streams) {
  write(of_cuda, x);
  write(a, x);
  EXPECT_TRUE(machine->synchronize_stream(0, of_cuda).ok());
  EXPECT_TRUE(complete(of_cuda, 1));
  EXPECT_FALSE(complete(a, 1));
  read(apart, x);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
}

TEST_F(legacy, its_end_is_the_end_of_all_that_came_before_it) {
  write(a, x);
  write(of_cuda, x);
  EXPECT_TRUE(machine->synchronize_stream(0, of_cuda).ok());
  EXPECT_TRUE(complete(a, 1));
  read(apart, x);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(legacy, a_blocking_streams_event_follows_legacy_work) {
  auto const e = event();
  write(of_cuda, x);
  EXPECT_TRUE(machine->record(0, a, e).ok());
  EXPECT_TRUE(machine->wait(0, apart, e).ok());
  read(apart, x);
  EXPECT_TRUE(machine->synchronize_stream(0, a).ok());
  EXPECT_TRUE(complete(of_cuda, 1)) << "the record came after it";
  EXPECT_EQ(kinds(), all{}) << text();
}

}  // namespace
}  // namespace weir::driver::check
