// AdamW and SGD against their formulas, over all types, enqueued and captured.
#include <limits>
#include <optional>
#include <string>

#include "tests/train/plain.h"
#include "train/update.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/stats.h"

namespace weir::optimizer_tests {
namespace {

using namespace weir::test;

constexpr double infinite = std::numeric_limits<double>::infinity();
using train::chunk;
// Parts of a chunk, one, and several.
constexpr std::int64_t counts[] = {1, 3, chunk, chunk + 1, 2 * chunk + 1027};
struct types {
  dtype parameter, gradient;
};
constexpr types all_types[] = {{float32, float32},   {float32, float16},  {float32, bfloat16}, {float64, float64},
                               {float64, float32},   {float64, bfloat16}, {float16, float16},  {float16, float32},
                               {bfloat16, bfloat16}, {bfloat16, float32}};

std::vector<owned_item> items_of_all_types() {
  std::vector<owned_item> all;
  for (types const t : all_types)
    for (std::int64_t const n : counts) {
      double const k = static_cast<double>(all.size() % 3);
      all.emplace_back(n, t.parameter, t.gradient, 1 / (1 + k), k == 1 ? 0 : 1);
    }
  all.emplace_back(chunk + 1, float32, float32, 1, 1, 1);  // off 16 bytes: no vectors
  return all;
}
std::vector<std::vector<double>> write_parameters(std::vector<owned_item> const& all, std::mt19937& random) {
  std::vector<std::vector<double>> wrote;
  for (owned_item const& o : all) {
    write(o.item.parameter, random_values(random, o.item.parameter.count));
    wrote.push_back(values_in(o.item.parameter));
  }
  return wrote;
}
// Within roundings of the type that is computed with; a parameter of 16 bits is its master copy, rounded.
void expect_near(optimizer const& o, std::size_t i, device_span parameter, std::vector<double> const& wanted) {
  bool const is_short = parameter.dtype == float16 || parameter.dtype == bfloat16;
  device_span const whole = is_short ? part(o, "master." + std::to_string(i)) : parameter;
  std::vector<double> const got = values_in(whole);
  double const step = whole.dtype == float64 ? 1e-12 : 2e-5;
  for (std::size_t k = 0; k < got.size(); ++k)
    ASSERT_NEAR(got[k], wanted[k], step) << "item " << i << " element " << k;
  if (is_short) {
    EXPECT_EQ(bits_of(parameter), rounded(parameter.dtype, got)) << "item " << i;
  }
}

// Runs `steps` steps of random gradients on both, and compares the parameters at the end.
template <class Plain>
void compare(optimizer& o, std::vector<owned_item> const& all, std::vector<std::vector<double>> const& first,
             std::mt19937& random, int steps, auto plain_step) {
  std::vector<std::vector<Plain>> plain;
  for (auto const& values : first) {
    plain.emplace_back();
    for (double const v : values)
      plain.back().push_back({v});
  }
  for (int t = 1; t <= steps; ++t) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      update_item const& item = all[i].item;
      write(item.gradient, random_values(random, item.gradient.count, 0.5));
      std::vector<double> const g = values_in(item.gradient);
      for (std::size_t k = 0; k < g.size(); ++k)
        plain_step(plain[i][k], item, g[k], t);
    }
    o.step(current_stream());
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<double> wanted;
    for (Plain const& p : plain[i])
      wanted.push_back(p.p);
    expect_near(o, i, all[i].item.parameter, wanted);
  }
  EXPECT_EQ(o.steps(current_stream()), steps);
  EXPECT_EQ(o.skipped(current_stream()), 0);
}

TEST(optimizer, adamw_follows_its_formula_over_all_types) {
  std::mt19937 random(1);
  auto const all = items_of_all_types();
  auto const first = write_parameters(all, random);
  adamw_options const how{.rate = 0.01, .decay = 0.1};
  adamw o(items_in(all), how);
  compare<plain_adamw>(o, all, first, random, 3, [&](plain_adamw& p, update_item const& i, double g, int t) {
    p.step(how, how.rate * i.rate, how.decay * i.decay, g, t);
  });
}

TEST(optimizer, sgd_follows_its_formula_over_all_types) {
  for (sgd_options const how : {sgd_options{.rate = 0.05, .decay = 0.1}, sgd_options{.rate = 0.02, .momentum = 0.9},
                                sgd_options{.rate = 0.02, .momentum = 0.8, .decay = 0.01, .nesterov = true}}) {
    std::mt19937 random(2);
    auto const all = items_of_all_types();
    auto const first = write_parameters(all, random);
    sgd o(items_in(all), how);
    compare<plain_sgd>(o, all, first, random, 2, [&](plain_sgd& p, update_item const& i, double g, int) {
      p.step(how, how.rate * i.rate, how.decay * i.decay, g);
    });
    EXPECT_EQ(o.state().size(), 3 + (how.momentum > 0 ? all.size() : 0) + 4 * std::size(counts));
  }
}

// Two equal models; one is updated by calls, one by launches of a graph.
TEST(optimizer, captured_steps_have_the_bits_of_eager_ones) {
  auto const run = [](bool captured) {
    std::mt19937 random(3);
    stream const s;
    stream_guard const in(s);
    std::vector<owned_item> all;
    all.emplace_back(3000, float32, float32);
    all.emplace_back(70, bfloat16, float16);
    write_parameters(all, random);
    loss_scale scale({.first = 8, .steps_to_grow = 3});
    adamw o(items_in(all), {.rate = 0.1, .max_norm = 2, .scale = &scale});
    std::optional<graph> step;
    if (captured)
      step.emplace(graph::capture(s, [&] { o.step(s); }));
    for (int t = 0; t < 9; ++t) {
      for (owned_item const& i : all)
        write(i.item.gradient, random_values(random, i.item.gradient.count, 4));
      if (t == 4)
        write(all[1].item.gradient, values_of(70, [](std::int64_t k) { return k == 69 ? infinite : 1; }));
      if (t == 6)
        o.set_rate(s, 0.02);
      if (captured)
        step->launch(s);
      else
        o.step(s);
    }
    EXPECT_EQ(o.steps(s), 8);
    EXPECT_EQ(o.skipped(s), 1);
    EXPECT_EQ(scale.read(s), 16);  // grew, shrank, grew
    std::vector<elements> bits{bits_of(all[0].item.parameter), bits_of(all[1].item.parameter)};
    for (state_part const& p : o.state())
      bits.push_back(bits_of(p.data));
    return bits;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(optimizer, a_limit_of_the_norm_scales_all_gradients) {
  std::mt19937 random(4);
  std::vector<owned_item> all;
  all.emplace_back(200'000, float32, float32);  // more elements than the norm has threads
  all.emplace_back(5, float64, float32);
  all.emplace_back(10, float32, float32, 0);  // counts in no norm
  write_parameters(all, random);
  std::vector<double> const before = values_in(all[1].item.parameter);
  double squares = 0;
  for (owned_item const& o : all) {
    write(o.item.gradient, random_values(random, o.item.gradient.count));
    for (double const g : values_in(o.item.gradient))
      squares += o.item.rate != 0 ? g * g : 0;
  }
  elements const left_alone = bits_of(all[2].item.parameter);
  double const norm = std::sqrt(squares);
  for (double const most : {norm * 2, norm / 4, 0.0}) {
    std::vector<double> const p = values_in(all[1].item.parameter), g = values_in(all[1].item.gradient);
    sgd o(items_in(all), {.rate = 1, .max_norm = most});
    o.step(current_stream());
    EXPECT_NEAR(values_in(o.norm())[0], norm, norm * 1e-6);
    std::vector<double> const now = values_in(all[1].item.parameter);
    for (std::size_t k = 0; k < p.size(); ++k)
      EXPECT_NEAR(now[k], p[k] - std::min(1.0, most / norm) * g[k], 1e-6);
  }
  EXPECT_EQ(bits_of(all[2].item.parameter), left_alone);
  sgd const without(items_in(all));
  EXPECT_EQ(without.norm().count, 0);
}

// float32 has neither the factor to all digits nor the second norm.
TEST(optimizer, gradients_of_float64_are_clipped_in_float64) {
  for (double const g : {3.0, 3e60}) {
    owned_item const one(5, float64, float64);
    write(one.item.parameter, std::vector<double>(5, 0));
    write(one.item.gradient, std::vector<double>(5, g));
    sgd o(std::vector{one.item}, {.rate = 1, .max_norm = 1});
    o.step(current_stream());
    EXPECT_EQ(o.skipped(current_stream()), 0);
    for (double const p : values_in(one.item.parameter))
      EXPECT_NEAR(p, -1 / std::sqrt(5.0), 1e-14) << g;
  }
}

// Copies of the state and the parameters, taken between two steps, go on with the same bits.
TEST(optimizer, a_saved_state_continues_with_the_same_bits) {
  std::mt19937 random(5);
  std::vector<owned_item> all;
  all.emplace_back(1500, float32, float32);
  all.emplace_back(40, float16, float16);
  write_parameters(all, random);
  auto const step = [&](optimizer& o, unsigned seed) {
    std::mt19937 numbers(seed);
    for (owned_item const& i : all)
      write(i.item.gradient, random_values(numbers, i.item.gradient.count));
    o.step(current_stream());
  };
  auto const bits = [&](optimizer const& o) {
    std::vector<elements> b{bits_of(all[0].item.parameter), bits_of(all[1].item.parameter)};
    for (state_part const& p : o.state())
      b.push_back(bits_of(p.data));
    return b;
  };
  adamw first(items_in(all));
  first.set_rate(current_stream(), 0.25);
  for (unsigned t = 0; t < 3; ++t)
    step(first, t);
  std::vector<elements> const saved = bits(first);
  step(first, 3);
  std::vector<elements> const wanted = bits(first);

  copy(all[0].item.parameter.data, saved[0].data(), saved[0].size());
  copy(all[1].item.parameter.data, saved[1].data(), saved[1].size());
  adamw other(items_in(all));
  auto const parts = other.state();
  for (std::size_t k = 0; k < parts.size(); ++k)
    copy(parts[k].data.data, saved[k + 2].data(), saved[k + 2].size());
  EXPECT_EQ(other.steps(current_stream()), 3);
  step(other, 3);
  EXPECT_EQ(bits(other), wanted);
  other.set_steps(current_stream(), 77);
  EXPECT_EQ(other.steps(current_stream()), 77);
}

// A new value of a 16-bit parameter reaches its master copy by a call alone.
TEST(optimizer, parameters_that_change_are_read_again_by_a_call) {
  std::vector<owned_item> all;
  all.emplace_back(4, bfloat16, bfloat16);
  write(all[0].item.parameter, {1, 2, 3, 4});
  write(all[0].item.gradient, {0, 0, 0, 0});
  sgd o(items_in(all));
  write(all[0].item.parameter, {5, 6, 7, 8});
  o.read_parameters(current_stream());
  o.step(current_stream());
  EXPECT_EQ(values_in(all[0].item.parameter), (std::vector<double>{5, 6, 7, 8}));
}

// As PyTorch keeps it: a parameter is infinite on purpose in a mask.
TEST(optimizer, an_infinite_parameter_without_decay_stays) {
  owned_item const one(2, float32, float32);
  write(one.item.parameter, {-infinite, 1});
  write(one.item.gradient, {1, 1});
  adamw(std::vector{one.item}, {.rate = 0.5, .decay = 0}).step(current_stream());
  sgd(std::vector{one.item}, {.rate = 0.5, .decay = 0}).step(current_stream());
  adamw(std::vector{one.item}, {.rate = 0, .decay = 1}).step(current_stream());
  EXPECT_EQ(values_in(one.item.parameter)[0], -infinite);
  EXPECT_NEAR(values_in(one.item.parameter)[1], 0, 1e-6);
}

// A launch that is refused leaves a step that the next call finishes: it counts once.
TEST(optimizer, a_refused_step_is_repeated_with_the_same_bits) {
  std::vector<elements> undisturbed;
  for (std::uint64_t call = 0; call <= 4; ++call) {
    runtime own(simulated{.devices = 1, .memory = 16_MiB});
    runtime_guard const in(own);
    std::mt19937 random(6);
    std::vector<owned_item> all;
    all.emplace_back(1500, float32, float32);
    write_parameters(all, random);
    loss_scale scale({.first = 4, .steps_to_grow = 1});
    adamw o(items_in(all), {.rate = 0.1, .scale = &scale});
    for (int t = 0; t < 2; ++t) {
      write(all[0].item.gradient, random_values(random, 1500));
      if (call && t == 0) {
        simulation::of(own).fail_call("enqueue", call);
        EXPECT_NE(refusal<error>([&] { o.step(current_stream()); }), "") << call;
      }
      o.step(current_stream());
    }
    EXPECT_EQ(o.steps(current_stream()), 2) << call;
    EXPECT_EQ(scale.read(current_stream()), 16) << call;
    std::vector<elements> const got{bits_of(all[0].item.parameter), bits_of(part(o, "mean.0"))};
    if (call == 0)
      undisturbed = got;
    EXPECT_EQ(got, undisturbed) << call;
  }
}

// A capture that is refused runs nothing. The next graph has all launches of a step.
TEST(optimizer, a_refused_capture_leaves_nothing_to_finish) {
  std::vector<elements> undisturbed;
  for (std::uint64_t call = 0; call <= 4; ++call) {
    runtime own(simulated{.devices = 1, .memory = 16_MiB});
    runtime_guard const in(own);
    std::mt19937 random(6);
    std::vector<owned_item> all;
    all.emplace_back(1500, float32, float32);
    write_parameters(all, random);
    write(all[0].item.gradient, random_values(random, 1500));
    loss_scale scale({.first = 4, .steps_to_grow = 1});
    adamw o(items_in(all), {.rate = 0.1, .max_norm = 1, .scale = &scale});
    stream const s;
    s.wait(current_stream());
    auto const captured = [&] { return graph::capture(s, [&] { o.step(s); }); };
    if (call) {
      simulation::of(own).fail_call("enqueue", call);
      EXPECT_NE(refusal<error>([&] { captured(); }), "") << call;
    }
    graph step = captured();
    step.launch(s), step.launch(s);
    EXPECT_EQ(o.steps(s), 2) << call;
    EXPECT_EQ(scale.read(s), 16) << call;
    std::vector<elements> const got{bits_of(all[0].item.parameter), bits_of(part(o, "mean.0"))};
    if (call == 0)
      undisturbed = got;
    EXPECT_EQ(got, undisturbed) << call;
  }
}

// A graph would repeat what is left of a step at each launch.
TEST(optimizer, a_capture_amid_a_refused_step_is_refused) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  all.emplace_back(4, float32, float32);
  write(all[0].item.gradient, {1, 1, 1, 1});
  sgd o(items_in(all), {.rate = 1});
  stream const s;
  s.wait(current_stream());
  simulation::of(own).fail_call("enqueue", 2);
  EXPECT_THROW(o.step(s), error);
  EXPECT_NE(refusal<invalid_use>([&] { graph::capture(s, [&] { o.step(s); }); }).find("refused in part"),
            std::string::npos);
  o.step(s);
  graph::capture(s, [&] { o.step(s); }).launch(s);
  EXPECT_EQ(o.steps(s), 2);
}

// One for all tensors, behind one of a single thread: the launch after the second fails no step.
TEST(optimizer, a_step_of_many_tensors_makes_two_launches) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  for (int i = 0; i < 50; ++i)
    all.emplace_back(10 + i, i % 2 ? float32 : float16, float32);
  adamw o(items_in(all));
  simulation machine = simulation::of(own);
  std::uint64_t const third = machine.fail_call("enqueue", 3);
  o.step(current_stream());
  EXPECT_TRUE(machine.cancel_failure(third));
  machine.fail_call("enqueue", 2);
  EXPECT_THROW(o.step(current_stream()), error);
}

// Nothing has run on the device when a step returns, and no device memory was allocated.
TEST(optimizer, a_step_waits_for_nothing_and_allocates_nothing) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  all.emplace_back(1500, float32, float32);
  loss_scale scale;
  adamw o(items_in(all), {.max_norm = 1, .scale = &scale});
  stream const s;
  s.wait(current_stream());
  std::int64_t const before = memory_stats().allocated_bytes.all.allocated;
  o.step(s);
  o.set_rate(s, 0.5);
  EXPECT_FALSE(s.query());
  EXPECT_EQ(memory_stats().allocated_bytes.all.allocated, before);
}

TEST(optimizer, without_memory_for_its_state_is_refused_whole) {
  runtime own(simulated{.devices = 1, .memory = 8_MiB});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  // 2 MiB, and as much for its gradient: mean and square do not fit.
  all.emplace_back(1 << 19, float32, float32);
  buffer const rest(2_MiB);
  std::int64_t const before = memory_stats().allocated_bytes.all.current;
  EXPECT_THROW(adamw(items_in(all)), out_of_memory);
  EXPECT_EQ(memory_stats().allocated_bytes.all.current, before);
  sgd o(items_in(all));
  o.step(current_stream());
  EXPECT_EQ(o.steps(current_stream()), 1);
}

// A step on a stream that did not wait for the gradient's writer.
TEST(optimizer, a_step_beside_the_writer_of_a_gradient_is_a_race) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB}, {.check_races = true});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  all.emplace_back(1500, float32, float32);
  fill(all[0].item.parameter.data, std::byte{0}, 6000);
  adamw o(items_in(all));
  stream const writer, reader;
  writer.wait(current_stream()), reader.wait(current_stream());
  fill(writer, all[0].item.gradient.data, std::byte{0}, 6000);
  reader.wait(writer);
  o.step(reader);
  writer.wait(reader);
  synchronize();
  EXPECT_EQ(race_reports().size(), 0);
  fill(writer, all[0].item.gradient.data, std::byte{0}, 6000);
  o.step(reader);
  synchronize();
  EXPECT_NE(race_reports().size(), 0);
}

// The checker is told of all that items with one gradient read.
TEST(optimizer, the_largest_of_items_with_one_gradient_is_declared) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB}, {.check_races = true});
  runtime_guard const in(own);
  std::vector<owned_item> all;
  all.emplace_back(1500, float32, float32);
  all.emplace_back(10, float32, float32);
  all[1].item.gradient = {all[0].item.gradient.data, 10, float32};
  adamw o(items_in(all));
  stream const writer, reader;
  writer.wait(current_stream()), reader.wait(current_stream());
  fill(writer, static_cast<float*>(all[0].item.gradient.data) + 1000, std::byte{0}, 2000);
  o.step(reader);
  synchronize();
  EXPECT_NE(race_reports().size(), 0);
}

TEST(optimizer, wrong_arguments_are_refused_by_name) {
  std::vector<owned_item> all;
  all.emplace_back(4, float32, float32);
  all.emplace_back(4, int32, float32, 0);
  auto items = items_in(all);
  auto const says = [&](std::string const& text, auto change) {
    std::vector<update_item> changed = items;
    adamw_options how;
    change(changed, how);
    std::string const said = refusal<error>([&] { adamw(changed, how); });
    EXPECT_NE(said.find(text), std::string::npos) << said << " lacks " << text;
  };
  using list = std::vector<update_item>;
  says("nothing to update among 2 items", [](list& l, adamw_options&) { l[0].rate = 0; });
  says("item 0 of 3 elements, its gradient of 4", [](list& l, adamw_options&) { l[0].parameter.count = 3; });
  says("item 0 has no gradient", [](list& l, adamw_options&) { l[0].gradient.data = nullptr; });
  says("item 1 of int32, its gradient of float32", [](list& l, adamw_options&) { l[1].rate = 1; });
  says("item 0 of float32, its gradient of float64", [](list& l, adamw_options&) { l[0].gradient.dtype = float64; });
  says("items 0 and 2 share memory", [](list& l, adamw_options&) { l.push_back(l[0]); });
  says("adamw (item 0): rate is -1", [](list& l, adamw_options&) { l[0].rate = -1; });
  says("rate is inf", [](list&, adamw_options& o) { o.rate = infinite; });
  says("max_norm is nan", [](list&, adamw_options& o) { o.max_norm = std::nan(""); });
  says("beta1 is 1", [](list&, adamw_options& o) { o.beta1 = 1; });
  says("beta2 is -0.5", [](list&, adamw_options& o) { o.beta2 = -0.5; });
  says("epsilon is -1", [](list&, adamw_options& o) { o.epsilon = -1; });
  EXPECT_NE(refusal<invalid_use>([&] { sgd(items, {.nesterov = true}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { loss_scale({.first = 0.5}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { loss_scale({.first = 4, .most = 2}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { loss_scale({.steps_to_grow = 0}); }), "");
  adamw o(items);
  EXPECT_NE(refusal<invalid_use>([&] { o.set_rate(current_stream(), -1); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { o.set_steps(current_stream(), -1); }), "");
  // A parameter that was freed.
  all[0].parameter.reset();
  EXPECT_NE(refusal<invalid_use>([&] { o.step(current_stream()); }), "");
}

}  // namespace
}  // namespace weir::optimizer_tests
