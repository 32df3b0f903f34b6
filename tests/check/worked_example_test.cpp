// The worked example: the pipeline of docs/tutorial/find-a-race.md, with its missing line.
// Threads: one.
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/sim.h"

namespace {

// Lines of this file, in the pipeline.
struct {
  int copy, launch;
} line;

// Doubles each batch on one stream while another stream copies the next batch.
float pipeline(bool mended) {
  constexpr size_t n = 1024;
  weir::stream copies, compute;
  weir::stream_guard const home{copies.ref()};
  weir::buffer in = weir::pinned(n * sizeof(float)), out = weir::pinned(n * sizeof(float));
  weir::buffer batch(n * sizeof(float));
  for (float& x : in.host<float>())
    x = 21;
  weir::copy(copies, batch.data(), in.data(), batch.size(), weir::non_blocking), line.copy = __LINE__;
  if (mended)
    compute.ref().wait(copies);
  line.launch = __LINE__ + 1;
  weir::parallel_for(compute, n, {weir::updates(batch)},
                     [x = batch.data<float>()] WEIR_HOST_DEVICE(size_t i) { x[i] *= 2; });
  weir::copy(compute, out.data(), batch.data(), batch.size(), weir::blocking::yes);
  return out.host<float>()[n - 1];
}

struct outcome {
  std::uint64_t seed;
  float result;
  std::uint64_t trace;
  std::vector<weir::race_report> races;
};

outcome run(std::uint64_t seed, bool mended) {
  weir::runtime rt{
      weir::simulated{.devices = 1, .memory = 64 << 20, .schedule = weir::simulated::scheduling::seeded, .seed = seed},
      {.check_races = true}};
  weir::runtime_guard const in{rt};
  float const result = pipeline(mended);
  return {seed, result, weir::simulation::of(rt).trace_hash(), weir::race_reports()};
}

TEST(worked_example, the_race_is_reported_for_every_seed) {
  int wrong = 0;
  std::optional<outcome> first;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    outcome const o = run(seed, false);
    ASSERT_EQ(o.races.size(), 1u) << "seed " << seed;
    for (int const at : {line.copy, line.launch}) {
      EXPECT_NE(o.races[0].text.find("worked_example_test.cpp:" + std::to_string(at)), std::string::npos)
          << o.races[0].text;
    }
    if (first) {
      EXPECT_EQ(o.races[0].text, first->races[0].text);
    }
    if (!first)
      first = o;
    wrong += o.result != 42;
  }
  std::printf("wrong bytes under %d seeds of 50; the report under each of them:\n%s\n", wrong,
              first->races[0].text.c_str());
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 50);
}

TEST(worked_example, a_seed_is_the_same_run_again) {
  std::uint64_t seed = 1;
  while (run(seed, false).result == 42)
    ++seed;
  outcome const once = run(seed, false), again = run(seed, false);
  std::printf("seed %llu: %g instead of 42, trace %016llx\nseed %llu: %g instead of 42, trace %016llx\n",
              static_cast<unsigned long long>(seed), static_cast<double>(once.result),
              static_cast<unsigned long long>(once.trace), static_cast<unsigned long long>(seed),
              static_cast<double>(again.result), static_cast<unsigned long long>(again.trace));
  EXPECT_EQ(once.trace, again.trace);
  EXPECT_EQ(once.result, again.result);
}

TEST(worked_example, the_corrected_program_is_right_for_every_seed) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    outcome const o = run(seed, true);
    EXPECT_EQ(o.result, 42) << "seed " << seed;
    EXPECT_TRUE(o.races.empty()) << o.races[0].text;
  }
}

}  // namespace
