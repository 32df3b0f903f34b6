// Runs programs under the checker on each kind of simulated machine and many seeds, and returns its findings.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/sanitized.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/sim.h"

namespace weir::check_tests {

inline auto const on_gpu = [](CUstream_st*) { FAIL() << "there is no GPU here"; };

inline void write(stream_ref s, void* p, size_t bytes, source_location at = source_location::current()) {
  launch(
      s, {writes(p, bytes)}, on_gpu,
      [p, bytes] {
        for (size_t i = 0; i < bytes; ++i)
          static_cast<volatile char*>(p)[i] = 1;
      },
      at);
}
inline void read(stream_ref s, void* p, size_t bytes, source_location at = source_location::current()) {
  launch(
      s, {reads(p, bytes)}, on_gpu,
      [p, bytes] {
        for (size_t i = 0; i < bytes; ++i)
          (void)static_cast<volatile char*>(p)[i];
      },
      at);
}

using program = std::function<void()>;
inline bool by_hand = false;  // the running program's machine moves only by hand

inline std::vector<race_report> found_in(simulated like, program const& run) {
  runtime rt{like, {.check_races = true}};
  runtime_guard const in{rt};
  by_hand = like.schedule == simulated::scheduling::stepped;
  run();
  return race_reports();
}

inline std::string texts(std::vector<race_report> const& all) {
  std::string text;
  for (auto const& r : all)
    text += r.text + "\n";
  return text;
}

// Requires the same findings on a stepped machine, where nothing moves by itself, and on fifty seeded ones. With a
// sanitizer five suffice: each runs the same code, in another order.
inline std::vector<race_report> found_without_threads(program const& run) {
  using how = simulated::scheduling;
  simulated like{.devices = 2, .memory = 64_MiB, .schedule = how::stepped, .seed = 1};
  auto const once = found_in(like, run);
  for (std::uint64_t seed = 1, last = tests::sanitized ? 5 : 50; seed <= last; ++seed) {
    like.schedule = how::seeded;
    like.seed = seed;
    EXPECT_EQ(texts(found_in(like, run)), texts(once)) << "seed " << seed;
  }
  return once;
}

// As above, and on a machine with threads.
inline std::vector<race_report> found(program const& run) {
  auto const once = found_without_threads(run);
#if defined(__SANITIZE_THREAD__)
  if (!once.empty())
    return once;  // a race of the program is also a race of the threads that run its work
#endif
  EXPECT_EQ(texts(found_in({.devices = 2, .memory = 64_MiB}, run)), texts(once)) << "threads";
  return once;
}

inline void expect_one(std::vector<race_report> const& all, std::string const& kind,
                       std::vector<std::string> const& words) {
  ASSERT_EQ(all.size(), 1u) << texts(all);
  EXPECT_EQ(all[0].kind, kind) << all[0].text;
  for (auto const& word : words)
    EXPECT_NE(all[0].text.find(word), std::string::npos) << word << " in: " << all[0].text;
}
inline void expect_none(std::vector<race_report> const& all) {
  EXPECT_TRUE(all.empty()) << texts(all);
}
inline std::string line(int n) {
  return "races_test.cpp:" + std::to_string(n);
}

}  // namespace weir::check_tests
