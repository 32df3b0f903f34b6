// The sentences of timeline_summary, from spans with known times. Threads: one.
#include <gtest/gtest.h>

#include "runtime/report/trace_events.h"

namespace weir::report {
namespace {

constexpr std::int64_t ms = 1'000'000;

observe::span work(std::string_view name, std::int64_t from_ms, std::int64_t to_ms, unsigned line = 1,
                   std::size_t bytes = 0) {
  observe::span s;
  s.where = observe::span::on::stream, s.name = name, s.begin_ns = from_ms * ms, s.end_ns = to_ms * ms, s.device = 0;
  s.bytes = bytes, s.at = {"a/ddp.cpp", "step", line};
  return s;
}

TEST(overlap, tells_the_share_of_collectives_behind_kernels) {
  std::vector<observe::span> const spans{work("launch", 0, 100), work("all_reduce", 50, 150, 7, 4 << 20),
                                         work("reduce_scatter", 150, 170, 9, 2 << 20),
                                         work("copy", 90, 110, 3, 1 << 20)};
  EXPECT_EQ(
      overlap(spans),
      "gpu:0: kernels ran for 100.0 ms, copies for 20.0 ms, collectives for 120.0 ms, streams waited for each other "
      "for 0.00 ms.\n"
      "Of the copies, 50 % of the time overlapped with a kernel.\n"
      "Longest alone: 1 copy of 1 MiB at ddp.cpp:3, 10.0 ms of 20.0 ms.\n"
      "Of the collectives, 41 % of the time overlapped with a kernel.\n"
      "Longest alone: 1 collective of 4 MiB at ddp.cpp:7, 50.0 ms of 100.0 ms.\n");
}

// A collective is no kernel, whatever its call is named: it hides no copy, and adds nothing to the kernels' time.
TEST(overlap, counts_collectives_and_host_functions_as_no_kernels) {
  for (std::string_view const name : {"all_reduce", "broadcast", "send", "send_receive", "group", "launch_host"}) {
    std::string const said = overlap(std::vector<observe::span>{work(name, 0, 20), work("copy", 0, 20)});
    EXPECT_NE(said.find("kernels ran for 0.00 ms"), std::string::npos) << said;
    EXPECT_NE(said.find("Of the copies, 0 % of"), std::string::npos) << said;
    EXPECT_NE(said.find(name == "launch_host" ? "host functions for 20.0 ms" : "collectives for 20.0 ms"),
              std::string::npos)
        << said;
  }
}

// A graph has kernels, copies and collectives inside, which have no times of their own.
TEST(overlap, says_that_graphs_count_as_kernels) {
  EXPECT_NE(overlap(std::vector<observe::span>{work("graph", 0, 20)}).find("kernels and graphs ran for 20.0 ms"),
            std::string::npos);
}

// The host's calls are recorded, too.
TEST(overlap, of_the_host_alone_says_that_no_stream_was_recorded) {
  observe::span call = work("copy", 0, 20);
  call.where = observe::span::on::thread;
  EXPECT_EQ(overlap(std::vector<observe::span>{call}), "Nothing was recorded on a stream.\n");
  EXPECT_EQ(overlap({}), "Nothing was recorded: call record_timeline() first.\n");
}

}  // namespace
}  // namespace weir::report
