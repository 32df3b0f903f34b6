// The parameters of sharded buckets are gathered beside the next forward pass: each is whole where the pass waits for
// it, and a pass that does not wait is a race.
#include <algorithm>
#include <atomic>
#include <functional>

#include "tests/train/plain.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::gather_tests {
namespace {

using namespace weir::test;

constexpr int layers = 6;
constexpr std::int64_t in_a_layer = 3000;

// Both ranks on this thread: calls of simulated machines return at once.
struct two_ranks {
  explicit two_ranks(simulated like = {.devices = 2, .memory = 64_MiB}, bool checks = true)
      : own(like, {.check_races = checks}), in(own) {
    all = communicator::create_all(first_devices(2));
    for (communicator& c : all) {
      device_guard const here(c.device());
      streams.emplace_back(c.device());
      stream_guard const on(streams.back());
      gradient_buckets& g = buckets.emplace_back(c, bucket_options{.bucket_bytes = 4096, .sharded = true});
      for (int i = 0; i < layers; ++i)
        g.add("layer", in_a_layer);
      g.build();
      optimizers.push_back(adamw(g, {.rate = 0.5}));
      streams.back().synchronize();
    }
  }
  template <class F>
  void each(F f) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      device_guard const here(all[r].device());
      stream_guard const on(streams[r]);
      f(buckets[r], optimizers[r], streams[r]);
    }
  }
  void step() {
    each([](gradient_buckets& g, optimizer&, stream const& s) {
      for (int i = layers - 1; i >= 0; --i) {
        auto* const to = static_cast<float*>(g.gradient(i).data);
        launch(
            s, {writes(g.gradient(i))}, [](auto*) {}, [to] { std::fill(to, to + in_a_layer, 1.f); });
        g.mark_ready(i, s);
      }
      g.finish(s);
    });
    each([](gradient_buckets& g, optimizer& by, stream const& s) { by.step(s, g); });
  }
  static void read(
      gradient_buckets const& g, int i, stream const& s, std::function<void()> seen = [] {}) {
    launch(
        s, {reads(g.parameter(i))}, [](auto*) {}, std::move(seen));
  }

  runtime own;
  runtime_guard in;
  std::vector<communicator> all;
  std::vector<stream> streams;
  std::vector<gradient_buckets> buckets;
  std::vector<optimizer> optimizers;
};

TEST(gathers, a_pass_that_waits_for_each_parameter_reads_it_whole) {
  two_ranks two;
  for (int step = 1; step <= 3; ++step) {
    two.step();
    two.each([&](gradient_buckets& g, optimizer&, stream const& s) {
      for (int i = 0; i < layers; ++i) {
        g.wait_gathered(i, s);
        auto const* const from = static_cast<float const*>(g.parameter(i).data);
        two_ranks::read(g, i, s, [=] {
          EXPECT_NE(from[0], 0);
          EXPECT_EQ(std::count(from, from + in_a_layer, from[0]), in_a_layer) << "layer " << i << ", step " << step;
        });
      }
    });
  }
  two.each([](gradient_buckets&, optimizer&, stream const& s) { s.synchronize(); });
  EXPECT_TRUE(race_reports().empty());
}

TEST(gathers, a_pass_that_reads_too_early_is_a_race) {
  two_ranks two;
  two.step();
  two.each([](gradient_buckets& g, optimizer&, stream const& s) {
    g.wait_gathered(0, s);
    two_ranks::read(g, 0, s);
  });
  EXPECT_TRUE(race_reports().empty());
  two.each([](gradient_buckets& g, optimizer&, stream const& s) { two_ranks::read(g, layers - 1, s); });
  auto const found = race_reports();
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].text.find("all_gather"), std::string::npos) << found[0].text;
}

TEST(gathers, gather_and_the_next_finish_wait_for_all) {
  for (bool const by_finish : {false, true}) {
    two_ranks two;
    two.step();
    if (by_finish)
      two.step();
    two.each([&](gradient_buckets& g, optimizer&, stream const& s) {
      if (!by_finish)
        g.gather(s);
    });
    if (by_finish)
      two.each([](gradient_buckets& g, optimizer&, stream const& s) { g.gather(s); });
    two.each([](gradient_buckets& g, optimizer&, stream const& s) {
      for (int i = 0; i < layers; ++i)
        two_ranks::read(g, i, s);
    });
    EXPECT_TRUE(race_reports().empty()) << by_finish;
  }
}

// Returns: whether the first layer ran on rank 0 before the last one had come from rank 1.
bool first_layer_is_early(std::uint64_t seed, bool overlaps) {
  two_ranks two({.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed}, false);
  two.step();
  std::atomic<bool> is_early{false};
  two.each([&](gradient_buckets& g, optimizer&, stream const& s) {
    overlaps ? g.wait_gathered(0, s) : g.gather(s);
    auto const* const last = static_cast<float const*>(g.parameter(layers - 1).data);
    bool const is_first = &g == two.buckets.data();
    two_ranks::read(g, 0, s, [&is_early, last, is_first] {
      // A seeded machine does one thing at a time.
      if (is_first && (last[0] == 0 || last[in_a_layer - 1] == 0))
        is_early = true;
    });
  });
  two.each([](gradient_buckets&, optimizer&, stream const& s) { s.synchronize(); });
  return is_early;
}

TEST(gathers, overlap_with_the_forward_pass) {
  int early = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    EXPECT_FALSE(first_layer_is_early(seed, false)) << seed;
    early += first_layer_is_early(seed, true);
  }
  EXPECT_GT(early, 0);
  RecordProperty("early", early);
}

TEST(gathers, of_buckets_that_are_whole_are_refused) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(1));
  gradient_buckets g(ranks[0]);
  g.add("w", 10);
  g.build();
  adamw by(g);
  EXPECT_NE(refusal<invalid_use>([&] { by.step(current_stream(), g); }).find("not sharded"), std::string::npos);
}

}  // namespace
}  // namespace weir::gather_tests
