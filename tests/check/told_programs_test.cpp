// Programs of weir's buffers and streams, with launches past weir as a watcher of CUDA tells them.
// Threads: one.
#include <cstdlib>

#include "runtime/core/parts.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/driver/race_control.h"
#include "runtime/driver/seen_calls.h"
#include "streams/stream/context.h"
#include "tests/check/programs.h"
#include "weir/pool.h"

namespace weir::check_tests {
namespace {

using driver::check::seen_pointer;

struct judged {
  std::vector<race_report> races, possible;
  std::string not_judged;
};

driver::check::seen_calls& watcher() {
  return *streams::current_runtime(source_location::current()).machine().checker()->calls();
}

// kernel<<<..., s>>>(p...), which no device here runs.
void bare_launch(stream_ref s, std::vector<seen_pointer> const& given, unsigned line) {
  auto const handle = static_cast<std::uintptr_t>(streams::clock_of(s).handle());
  watcher().launched(s.device().index(), handle, "_Z6kernelPf", given, {nullptr, {"kernel.cu", "", line}});
}
seen_pointer pointer(buffer const& b) {
  return {reinterpret_cast<std::uintptr_t>(b.data())};
}

judged judge(program const& run) {
  runtime rt{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 1},
             {.check_races = true}};
  runtime_guard const in{rt};
  (void)watcher();
  run();
  return {race_reports(), possible_races(), races_not_judged()};
}
void expect_nothing(judged const& j) {
  EXPECT_TRUE(j.races.empty()) << texts(j.races);
  EXPECT_TRUE(j.possible.empty()) << texts(j.possible);
}

// pytorch#58385: the caching allocator gives the block to the next request while the launch still uses it.
TEST(bare_launch, on_a_second_stream_wants_its_block_marked) {
  auto const program = [](bool marks) {
    return [marks] {
      stream const side;
      buffer x(4096);
      side.wait(current_stream());
      bare_launch(side, {pointer(x)}, 11);
      if (marks)
        record_stream(x.data(), side);
      x = {};
      buffer const next(4096);
      fill(next.data(), std::byte{1}, 4096);
      synchronize();
    };
  };
  auto const wrong = judge(program(false));
  expect_one(wrong.races, "freed in use", {"while launch of kernel at kernel.cu:11 may write it on stream 1 of gpu:0"});
  EXPECT_TRUE(wrong.possible.empty());
  expect_nothing(judge(program(true)));
}

TEST(bare_launch, beside_a_copy_races_and_behind_a_wait_does_not) {
  auto const program = [](bool waits) {
    return [waits] {
      stream const copies, compute;
      buffer const x(copies, 4096), host = pinned(4096);
      bare_launch(compute, {pointer(x)}, 11);
      if (waits)
        copies.wait(compute);
      copy(copies, host.data(), x.data(), 4096, non_blocking);
      synchronize();
    };
  };
  auto const wrong = judge(program(false));
  expect_one(wrong.races, "race",
             {"launch of kernel at kernel.cu:11 may write them", "copy at told_programs_test.cpp"});
  expect_nothing(judge(program(true)));
}

// Two launches are known by their pointers alone: no error, and no exception of require_no_races().
TEST(bare_launch, beside_another_is_no_error) {
  auto const j = judge([] {
    stream const a, b;
    buffer const x(a, 4096);
    bare_launch(a, {pointer(x)}, 11);
    bare_launch(b, {pointer(x)}, 12);
    require_no_races();
    synchronize();
  });
  EXPECT_TRUE(j.races.empty()) << texts(j.races);
  expect_one(j.possible, "possible race", {"kernel.cu:11", "kernel.cu:12"});
}

TEST(bare_launch, in_progress_is_seen_by_a_read_of_the_host) {
  auto const program = [](bool waits) {
    return [waits] {
      stream const s;
      buffer const x = pinned(4096);
      bare_launch(s, {pointer(x)}, 11);
      if (waits)
        s.synchronize();
      (void)x.host<float>();
      synchronize();
    };
  };
  expect_one(judge(program(false)).races, "host too early", {"launch of kernel at kernel.cu:11"});
  expect_nothing(judge(program(true)));
}

// weir waits for the streams it knows, before it unmaps.
TEST(bare_launch, in_progress_is_seen_by_a_pool_that_sleeps) {
  auto const program = [](bool knows) {
    return [knows] {
      pool p("activations");
      stream const side;
      pool_guard const from(p);
      buffer x(64_KiB);
      side.wait(current_stream());
      bare_launch(side, {pointer(x)}, 11);
      if (knows)
        synchronize();
      (void)p.sleep();
      p.wake();
      synchronize();
    };
  };
  expect_nothing(judge(program(true)));
  auto const wrong = judge(program(false));
  EXPECT_FALSE(wrong.races.empty() && wrong.possible.empty());
}

// Runs to its end under WEIR_CHECK_RACES=fail, reads no report, and leaves with status 0 by itself.
[[noreturn]] void ends_with(bool has_race) {
  ::setenv("WEIR_CHECK_RACES", "fail", 1);
  {
    runtime rt{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 1}};
    runtime_guard const in{rt};
    stream const a, b;
    buffer const x(a, 4096), y(a, 4096);
    bare_launch(a, {pointer(y), pointer(x)}, 11);
    bare_launch(b, {pointer(x)}, 12);
    if (has_race)
      fill(b, y.data(), std::byte{1}, 4096);
    synchronize();
  }
  std::exit(0);
}

TEST(bare_launch, that_may_race_sets_no_exit_status) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ends_with(false), ::testing::ExitedWithCode(0),
              "weir-584: the race checker found 1 possible race.*\nweir: possible race: .*\nweir-434: .* no error");
  EXPECT_EXIT(ends_with(true), ::testing::ExitedWithCode(66),
              "weir-108: the race checker found 1 error:\nweir: race: .*\nweir-584: .* 1 possible race");
}

// The streams that native() handed out are seen, too.
TEST(bare_launch, leaves_less_unjudged_under_a_watcher) {
  auto const j = judge([] {
    auto& machine = streams::current_runtime(source_location::current()).machine();
    machine.watching()->stream_handed_out({0, driver::stream_handle::legacy});
  });
  EXPECT_EQ(j.not_judged, "Not judged: memory that kernels reach by other ways than a pointer in their parameters");
}

}  // namespace
}  // namespace weir::check_tests
