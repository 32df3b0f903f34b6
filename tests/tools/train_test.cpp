// The models of weir bench train: their gradients, more ranks, and graphs.
// Threads: one for each rank.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "tools/weir/bench_train.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/runtime.h"

namespace weir::tool {
namespace {

constexpr model_shape tiny{
    .width = 16, .layers = 2, .rows = 2, .heads = 2, .context = 24, .vocabulary = 16, .type = float32};

std::vector<communicator> ranks_of(int n) {
  std::vector<device> on;
  for (int i = 0; i < n; ++i)
    on.emplace_back(i);
  return communicator::create_all(on);
}

// The mean of the ranks' losses after some steps, of `shape` on each of n ranks. Captured: all but the first step are
// launches of one graph.
double loss_of(model_shape const& shape, int n, int steps, bool captured = false) {
  auto ranks = ranks_of(n);
  std::vector<double> losses(ranks.size());
  std::vector<std::thread> threads;
  runtime& machine = runtime::current();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      runtime_guard const in(machine);
      device_guard const on(ranks[i].device());
      stream const own;
      stream_guard const in_it(own);
      auto const model = make_model(shape, ranks[i], 4096);
      auto const step = [&] {
        model->forward_backward();
        model->finish();
        model->update();
      };
      step();
      std::optional<graph> all;
      if (captured)
        all = graph::capture(own, step);
      for (int k = 1; k < steps; ++k)
        all ? all->launch() : step();
      losses[i] = model->loss();
    });
  }
  for (auto& t : threads)
    t.join();
  return std::accumulate(losses.begin(), losses.end(), 0.0) / n;
}

float at(void const* address, std::int64_t i) {
  float v = 0;
  copy(&v, static_cast<float const*>(address) + i, sizeof v);
  return v;
}

// Every parameter has one value that is moved; the loss must follow the gradient.
TEST(bench_train, gradients_are_differences_of_the_loss) {
  allow_tf32(false);
  auto ranks = ranks_of(1);
  device_guard const on(0);
  auto const model = make_model(tiny, ranks[0]);
  for (int step = 0; step < 3; ++step) {  // away from the zeros where biases begin
    model->forward_backward();
    model->finish();
    model->update();
  }
  model->forward_backward();
  model->finish();
  current_stream().synchronize();
  gradient_buckets const& b = model->buckets();
  std::vector<float> should;
  std::vector<std::int64_t> where;
  for (int p = 0; p < b.size(); ++p) {  // the largest of a few
    std::int64_t best = 0;
    for (std::int64_t k = 0; k < 16; ++k) {
      std::int64_t const i = k * 37 % b.gradient(p).count;
      if (std::abs(at(b.gradient(p).data, i)) > std::abs(at(b.gradient(p).data, best)))
        best = i;
    }
    where.push_back(best);
    should.push_back(at(b.gradient(p).data, best));
  }
  auto const loss_with = [&](int p, std::int64_t i, float value) {
    copy(static_cast<float*>(b.parameter(p).data) + i, &value, sizeof value);
    model->forward_backward();
    model->finish();
    return model->loss();
  };
  for (int p = 0; p < b.size(); ++p) {
    std::int64_t const i = where[static_cast<std::size_t>(p)];
    float const value = at(b.parameter(p).data, i), step = 2e-2f;
    double const is = (loss_with(p, i, value + step) - loss_with(p, i, value - step)) / (2 * static_cast<double>(step));
    (void)loss_with(p, i, value);
    float const gradient = should[static_cast<std::size_t>(p)];
    EXPECT_NEAR(is, gradient, 0.03 * std::abs(static_cast<double>(gradient)) + 2e-5) << "parameter " << p << ", " << i;
  }
}

// Ranks have other sequences of one text, and the mean of their gradients.
TEST(bench_train, ranks_train_as_one_does) {
  allow_tf32(false);
  ASSERT_FALSE(get_device_properties(0).simulated && device_count() < 4);
  for (int n = 2; n <= std::min(4, device_count()); n *= 2) {
    model_shape whole = tiny;
    whole.rows = tiny.rows * n;
    EXPECT_NEAR(loss_of(tiny, n, 6), loss_of(whole, 1, 6), 2e-6) << n << " ranks";
  }
}

TEST(bench_train, bfloat16_follows_float32) {
  model_shape half = tiny;
  half.type = bfloat16;
  double const exact = loss_of(tiny, 1, 20), rounded = loss_of(half, 1, 20);
  EXPECT_LT(exact, std::log(16.0) - 0.1);  // it learns
  EXPECT_NEAR(rounded / exact, 1, 1e-2);
}

// Captures of several GPUs in one process can deadlock in NCCL.
TEST(bench_train, a_graph_is_the_same_step) {
  int const most = get_device_properties(0).simulated ? 2 : 1;
  for (int const heads : {2, 0}) {
    model_shape shape = tiny;
    shape.heads = heads;
    for (int n = 1; n <= most; ++n)
      EXPECT_NEAR(loss_of(shape, n, 6, true), loss_of(shape, n, 6), 1e-6) << heads << " heads, " << n << " ranks";
  }
}

TEST(bench_train, only_the_models_that_are_named_are_measured) {
  auto const widths = [](std::vector<std::string> const& names, int own) {
    std::vector<int> all;
    for (model_shape const& m : chosen_models(names, {.width = own}))
      all.push_back(m.width);
    return all;
  };
  EXPECT_EQ(widths({}, 0), (std::vector{4096, 1024, 768}));
  EXPECT_EQ(widths({"large"}, 0), std::vector{4096});
  EXPECT_EQ(widths({"small"}, 0), std::vector{1024});
  EXPECT_EQ(widths({"transformer", "large"}, 0), (std::vector{4096, 768}));
  EXPECT_EQ(widths({}, 5), std::vector{5});
  EXPECT_EQ(widths({"small"}, 5), (std::vector{5, 1024}));
  EXPECT_THROW(chosen_models({"small", "huge"}, {}), invalid_use);
}

}  // namespace
}  // namespace weir::tool
