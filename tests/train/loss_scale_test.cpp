// The loss scale: when it grows and shrinks, what a step without finite gradients leaves, on one rank and on
// several.
#include <limits>
#include <string>

#include "tests/train/plain.h"

namespace weir::loss_scale_tests {
namespace {

using namespace weir::test;

constexpr double infinite = std::numeric_limits<double>::infinity();

TEST(loss_scale, grows_after_good_steps_and_halves_after_a_bad_one) {
  owned_item const one(3, float32, float32);
  loss_scale scale({.first = 4, .most = 16, .steps_to_grow = 2});
  sgd o(std::vector{one.item}, {.scale = &scale});
  std::vector<double> scales;
  for (bool const good :
       {true, true, true, false, true, true, true, true, true, true, false, false, false, false, false}) {
    write(one.item.gradient, {1, good ? 2 : std::numeric_limits<double>::quiet_NaN(), 3});
    o.step(current_stream());
    scales.push_back(scale.read(current_stream()));
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 8, 8, 4, 4, 8, 8, 16, 16, 16, 8, 4, 2, 1, 1}));
  EXPECT_EQ(o.steps(current_stream()), 9);
  EXPECT_EQ(o.skipped(current_stream()), 6);
  EXPECT_EQ(values_in(scale.value()), std::vector<double>{1});
  EXPECT_EQ(values_in(scale.state()), (std::vector<double>{1, 0}));
}

// Scales are powers of two: a step of scaled gradients has the bits of one without a scale, its limit
// included.
TEST(loss_scale, of_scaled_gradients_gives_the_bits_of_plain_ones) {
  auto const run = [](double by) {
    std::mt19937 random(1);
    owned_item const one(1500, float32, float32);
    write(one.item.parameter, random_values(random, 1500));
    loss_scale scale({.first = by});
    adamw o(std::vector{one.item}, {.rate = 0.1, .max_norm = 3, .scale = &scale});
    for (int t = 0; t < 4; ++t) {
      auto g = random_values(random, 1500, 0.25);
      for (double& x : g)
        x *= by;
      write(one.item.gradient, g);
      o.step(current_stream());
    }
    return std::pair(bits_of(one.item.parameter), bits_of(o.norm()));
  };
  EXPECT_EQ(run(1), run(4096));
}

// A step that is skipped counts in no correction of the means: the next steps have the bits of a run without
// it.
TEST(loss_scale, a_skipped_step_leaves_no_trace) {
  auto const run = [](bool bad) {
    std::mt19937 random(2);
    owned_item const one(1500, bfloat16, float16);
    write(one.item.parameter, random_values(random, 1500));
    loss_scale scale({.first = 1});
    adamw o(std::vector{one.item}, {.rate = 0.1, .scale = &scale});
    for (int t = 0; t < 4; ++t) {
      auto g = random_values(random, 1500);
      if (bad && t % 2 == 0) {
        auto with = g;
        with[1400] = -infinite;
        write(one.item.gradient, with);
        o.step(current_stream());
      }
      write(one.item.gradient, g);
      o.step(current_stream());
    }
    return std::vector{bits_of(one.item.parameter), bits_of(part(o, "master.0")), bits_of(part(o, "mean.0")),
                       bits_of(part(o, "square.0")), bits_of(part(o, "steps"))};
  };
  EXPECT_EQ(run(true), run(false));
}

// Sums of float16 overflow on the way between the ranks. All ranks skip that step, and stay equal bit by bit.
TEST(loss_scale, ranks_skip_a_step_whose_sum_overflows_together) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::vector<std::vector<elements>> of_ranks(ranks.size());
  on_each(runtime::current(), ranks, [&](communicator& c) {
    gradient_buckets g(c, {.average = false, .reduce_as = float16});
    g.add("weights", 2000), g.add("bias", 7);
    g.build();
    std::mt19937 same(3), own(static_cast<unsigned>(10 + c.rank()));
    for (int i : {0, 1})
      write(g.parameter(i), random_values(same, g.parameter(i).count));
    loss_scale scale({.first = 1024});
    auto items = items_of(g);
    items[1].decay = 0;
    adamw o(items, {.rate = 0.1, .max_norm = 2, .scale = &scale});
    for (int t = 0; t < 5; ++t) {
      for (int i : {1, 0}) {
        auto values = random_values(own, g.gradient(i).count, 100);
        // The last rank's number alone is beyond float16.
        if (t == 2 && i == 0 && c.rank() == n - 1)
          values[1999] = 1e6;
        write(g.gradient(i), values);
        g.mark_ready(i, current_stream());
      }
      g.finish(current_stream());
      elements const before = bits_of(g.parameter(0));
      o.step(current_stream());
      EXPECT_EQ(bits_of(g.parameter(0)) == before, t == 2) << t;
    }
    EXPECT_EQ(o.steps(current_stream()), 4);
    EXPECT_EQ(o.skipped(current_stream()), 1);
    EXPECT_EQ(scale.read(current_stream()), 512);
    auto& mine = of_ranks[static_cast<std::size_t>(c.rank())];
    mine = {bits_of(g.parameter(0)), bits_of(g.parameter(1)), bits_of(o.norm())};
    for (state_part const& p : o.state())
      mine.push_back(bits_of(p.data));
  });
  for (auto const& other : of_ranks)
    EXPECT_EQ(other, of_ranks[0]);
}

// An item of the buckets that has a gradient alone, as a loss has, is left alone and needs no settings.
TEST(loss_scale, a_gradient_without_a_parameter_is_left_alone) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  buffer const loss(4);
  gradient_buckets g(ranks[0]);
  g.add("weights", 5), g.add("loss", {}, {loss.data(), 1, float32});
  g.build();
  write({loss.data(), 1, float32}, {infinite});
  write(g.gradient(0), {1, 1, 1, 1, 1});
  g.mark_ready(0, current_stream()), g.mark_ready(1, current_stream());
  g.finish(current_stream());
  sgd o(g, {.rate = 1, .max_norm = 100});
  o.step(current_stream());
  EXPECT_EQ(values_in(g.parameter(0)), (std::vector<double>{-1, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace weir::loss_scale_tests
