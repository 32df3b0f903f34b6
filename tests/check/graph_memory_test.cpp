// Memory of graphs under the checker: blocks inside captures, graphs that share memory, and when a launch is over.
// Threads: one.
#include "tests/check/bench.h"

namespace weir::driver::check {
namespace {

using all = std::vector<kind>;

struct graph_memory : bench {
  stream_handle const s = stream(), t = stream(), u = stream();
  address const x = memory();
  bool gone = false;

  // A graph whose one block at x is written, and freed unless it is an output.
  executable_handle writer(bool freed = true) {
    gone = false;
    EXPECT_TRUE(machine->begin_capture(0, s, capture_mode::relaxed).ok());
    EXPECT_TRUE(machine
                    ->keep_with_graph(
                        0, s, [](void* p) { *static_cast<bool*>(p) = true; }, &gone)
                    .ok());
    begins(s, x, 64, 1);
    write(s, x);
    if (freed)
      ends({{0, s}}, x, 64, 2);
    auto const g = machine->end_capture(0, s);
    EXPECT_TRUE(g.ok());
    auto const ready = machine->instantiate(0, g.value);
    EXPECT_TRUE(machine->destroy_graph(g.value).ok());
    return ready.value;
  }
  void launch(executable_handle g, stream_handle on) { EXPECT_TRUE(machine->launch_graph(0, on, g).ok()); }
  void drain() { (void)sim->run(); }
};

TEST_F(graph_memory, launches_may_use_what_is_freed_inside) {
  auto const g = writer();
  launch(g, s);
  launch(g, t);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(graph_memory, graphs_that_share_it_race_if_unordered) {
  auto const g = writer(), h = writer();
  launch(g, s);
  order(s, t);
  launch(h, t);
  EXPECT_EQ(kinds(), all{}) << text();
  launch(g, s);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
  EXPECT_NE(text().find("graph launch writes them on stream 1"), std::string::npos) << text();
}

TEST_F(graph_memory, a_use_inside_after_the_free_is_found) {
  EXPECT_TRUE(machine->begin_capture(0, s, capture_mode::relaxed).ok());
  begins(s, x, 64, 1);
  write(s, x);
  ends({{0, s}}, x, 64, 2);
  read(s, x);
  EXPECT_EQ(kinds(), (all{kind::use_after_free})) << text();
}

TEST_F(graph_memory, inside_it_is_handed_out_in_order_alone) {
  for (bool const right : {true, false}) {
    EXPECT_TRUE(machine->begin_capture(0, s, capture_mode::relaxed).ok());
    begins(s, x, 64, 1);
    write(s, x);
    order(s, t);  // t joins
    if (right) {
      ends({{0, s}}, x, 64, 2);
      order(s, t);
    } else {
      write(s, x);
      ends({{0, s}}, x, 64, 2);
    }
    begins(t, x, 64, 3);
    write(t, x);
    ends({{0, t}}, x, 64, 4);
    order(t, s);
    EXPECT_TRUE(machine->destroy_graph(machine->end_capture(0, s).value).ok());
    if (right) {
      EXPECT_EQ(kinds(), all{}) << text();
    } else {
      EXPECT_FALSE(kinds().empty());
      EXPECT_EQ(kinds().front(), kind::handed_out_early) << text();
    }
  }
}

TEST_F(graph_memory, a_free_beside_unmarked_use_inside_is_found) {
  EXPECT_TRUE(machine->begin_capture(0, s, capture_mode::relaxed).ok());
  begins(s, x, 64, 1);
  order(s, t);
  read(t, x);
  ends({{0, s}}, x, 64, 2);
  EXPECT_EQ(kinds(), (all{kind::freed_in_use})) << text();
}

TEST_F(graph_memory, ordinary_memory_goes_into_it_when_complete) {
  begins(t, x, 64, 1);
  write(t, x);
  ends({{0, t}}, x, 64, 2);
  (void)writer();
  EXPECT_EQ(kinds(), (all{kind::handed_out_early})) << text();
}

TEST_F(graph_memory, it_is_ordinary_when_the_launches_are_over) {
  for (bool const over : {true, false}) {
    auto const g = writer();
    launch(g, u);
    if (over)
      drain();
    EXPECT_TRUE(machine->destroy_executable(g).ok());
    EXPECT_EQ(gone, over);
    begins(t, x, 64, 3);
    EXPECT_EQ(kinds(), over ? all{} : all{kind::handed_out_early}) << text();
    ends({{0, t}}, x, 64, 4);
    drain();
    EXPECT_TRUE(machine->synchronize_stream(0, t).ok());
  }
}

TEST_F(graph_memory, a_block_from_before_freed_inside_is_the_graphs) {
  begins(s, x, 64, 1);
  EXPECT_TRUE(machine->begin_capture(0, s, capture_mode::relaxed).ok());
  write(s, x);
  ends({{0, s}}, x, 64, 2);
  auto const kept = machine->end_capture(0, s);
  auto const g = machine->instantiate(0, kept.value);
  launch(g.value, s);
  EXPECT_EQ(kinds(), all{}) << text();
}

}  // namespace
}  // namespace weir::driver::check
