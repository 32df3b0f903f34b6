// The parameters of sharded buckets are gathered beside the next forward pass: each is whole where the pass waits for
// it, and a pass that does not wait is a race.
#include <algorithm>
#include <atomic>
#include <functional>
#include <ranges>
#include <span>
#include <stdexcept>

#include "tests/train/plain.h"
#include "weir/graph.h"
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
  // optimizers: of one rank; each has as many of the layers
  explicit two_ranks(simulated like = {.devices = 2, .memory = 64_MiB}, bool checks = true,
                     std::size_t optimizers_each = 1)
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
      std::vector<update_item> const items = items_of(g);
      optimizers.push_back(adamw(std::span(items).first(layers / optimizers_each), {.rate = 0.5}));
      if (optimizers_each > 1)
        others.push_back(adamw(std::span(items).subspan(layers / optimizers_each), {.rate = 0.5}));
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
    reduce();
    each([](gradient_buckets& g, optimizer& by, stream const& s) { by.step(s, g); });
  }
  void gather() {
    each([](gradient_buckets& g, optimizer&, stream const& s) { g.gather(s); });
  }
  void reduce() {
    each([](gradient_buckets& g, optimizer&, stream const& s) {
      for (int i = layers - 1; i >= 0; --i) {
        auto* const to = static_cast<float*>(g.gradient(i).data);
        launch(
            s, {writes(g.gradient(i))}, [](auto*) {}, [to] { std::fill(to, to + in_a_layer, 1.f); });
        g.mark_ready(i, s);
      }
      g.finish(s);
    });
  }
  // Each step changes all elements of a parameter by one number.
  void expect_whole(char const* what) {
    each([&](gradient_buckets& g, optimizer&, stream const& s) {
      s.synchronize();
      for (int i = 0; i < layers; ++i) {
        std::vector<double> const got = values_in(g.parameter(i));
        EXPECT_NE(got[0], 0) << what << ", layer " << i;
        EXPECT_EQ(std::ranges::count(got, got[0]), in_a_layer) << what << ", layer " << i;
      }
    });
    EXPECT_TRUE(race_reports().empty()) << what;
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
  std::vector<optimizer> optimizers, others;
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

TEST(gathers, that_gather_has_waited_for_are_over) {
  two_ranks two;
  two.step();
  two.gather();
  two.each([](gradient_buckets&, optimizer& by, stream const& s) { by.step(s); });
  two.gather();
  two.expect_whole("a second gather()");
  two.each([](gradient_buckets& g, optimizer& by, stream const& s) { by.step(s, g); });
  two.gather();
  two.expect_whole("a second step");
}

TEST(gathers, of_a_dropped_capture_do_not_count) {
  two_ranks two;
  two.reduce();
  two.each([](gradient_buckets& g, optimizer& by, stream const& s) {
    auto const dropped = [&] {
      by.step(s, g);
      throw std::runtime_error("the capture is dropped");
    };
    EXPECT_THROW(graph::capture(s, dropped), std::exception);
  });
  two.each([](gradient_buckets& g, optimizer& by, stream const& s) { by.step(s, g); });
  two.gather();
  two.expect_whole("behind a dropped capture");
}

TEST(gathers, are_waited_for_by_a_stream_that_finish_did_not_know) {
  two_ranks two;
  two.step();
  two.reduce();
  std::vector<stream> readers;
  two.each([&](gradient_buckets& g, optimizer&, stream const& s) {
    stream const& reader = readers.emplace_back(s.device());
    g.wait_gathered(layers - 1, reader);
    two_ranks::read(g, layers - 1, reader);
  });
  EXPECT_TRUE(race_reports().empty());
}

TEST(gathers, that_began_before_a_capture_are_refused_in_it) {
  two_ranks two;
  two.step();
  two.each([](gradient_buckets& g, optimizer& by, stream const& s) {
    auto const says = [&](auto call) { return refusal<invalid_use>([&] { graph::capture(s, call); }); };
    std::string const waits = says([&] { g.wait_gathered(0, s); }), all = says([&] { g.gather(s); });
    EXPECT_NE(waits.find("wait_gathered: a capture, and gathers"), std::string::npos) << waits;
    EXPECT_NE(all.find("gather: a capture, and gathers"), std::string::npos) << all;
    EXPECT_NE(all.find("Call gather(), and synchronize"), std::string::npos) << all;
    EXPECT_NE(says([&] { by.step(s, g); }).find("a capture, and gathers"), std::string::npos);
  });
  two.gather();
  two.each([](gradient_buckets& g, optimizer&, stream const& s) {
    s.synchronize();
    graph const captured = graph::capture(s, [&] {
      g.wait_gathered(0, s);
      two_ranks::read(g, 0, s);
    });
  });
  two.expect_whole("behind captures");
}

TEST(gathers, of_two_optimizers_begin_behind_the_last) {
  two_ranks two({.devices = 2, .memory = 64_MiB}, true, 2);
  two.step();
  for (std::size_t r = 0; r < 2; ++r) {
    std::string const said = refusal<invalid_use>([&] { two.others[r].step(two.streams[r], two.buckets[r]); });
    EXPECT_NE(said.find("gathers are under way"), std::string::npos) << said;
  }
  two.gather();
  two.reduce();
  two.each([](gradient_buckets&, optimizer& by, stream const& s) { by.step(s); });
  for (std::size_t r = 0; r < 2; ++r)
    two.others[r].step(two.streams[r], two.buckets[r]);
  two.gather();
  two.expect_whole("two optimizers");
}

TEST(gathers, of_another_ranks_buckets_are_refused_before_the_step) {
  two_ranks two;
  two.reduce();
  std::string const said = refusal<invalid_use>([&] { two.optimizers[0].step(two.streams[0], two.buckets[1]); });
  EXPECT_NE(said.find("none of its items"), std::string::npos) << said;
  EXPECT_EQ(two.optimizers[0].steps(two.streams[0]), 0);
  two.each([](gradient_buckets& g, optimizer& by, stream const& s) { by.step(s, g); });
  two.gather();
  two.expect_whole("behind a refused step");
}

TEST(gathers, of_a_refused_step_go_on_with_the_same_buckets) {
  int repeated = 0;
  for (std::uint64_t call = 2; call <= 8; ++call) {
    two_ranks two;
    two.reduce();
    stream const& s = two.streams[0];
    simulation::of(two.own).fail_call("enqueue", call);
    EXPECT_NE(refusal<error>([&] { two.optimizers[0].step(s, two.buckets[0]); }), "") << call;
    if (!two.all[0].failure().empty())
      continue;  // a part of a gather was refused, not an update
    ++repeated;
    std::string const said = refusal<invalid_use>([&] { two.optimizers[0].step(s); });
    EXPECT_NE(said.find("with other buckets"), std::string::npos) << said;
    two.each([](gradient_buckets& g, optimizer& by, stream const& on) { by.step(on, g); });
    two.gather();
    two.expect_whole("a repeated step");
    EXPECT_EQ(two.optimizers[0].steps(s), 1);
  }
  EXPECT_GT(repeated, 1);
}

}  // namespace
}  // namespace weir::gather_tests
