// Gradient buckets: clipping by the norm of all gradients.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/peer/ranks.h"
#include "weir/graph.h"
#include "weir/sim.h"

namespace weir::clip_of_buckets {
namespace {

using namespace weir::test;

constexpr double no_limit = std::numeric_limits<double>::infinity();
// The fourth has more elements than one thread each.
constexpr std::int64_t counts[] = {3, 0, 1000, 70'000, 64};
constexpr dtype types[] = {float32, float32, float64, float32, bfloat16};
constexpr int gradients = static_cast<int>(std::size(counts));

double value(int rank, int which, std::int64_t i) {
  return static_cast<double>((i + rank * 3 + which * 7) % 8) - 3;
}
void write_and_mark(gradient_buckets& g, int rank, double factor = 1) {
  for (int i = g.size() - 1; i >= 0; --i) {
    device_span const to = g.gradient(i);
    elements const e =
        encode(to.dtype, values_of(to.count, [&](std::int64_t k) { return factor * value(rank, i, k); }));
    copy(to.data, e.data(), e.size());
    g.mark_ready(i, current_stream());
  }
}
double sum_at(int ranks, int which, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r)
    sum += value(r, which, i);
  return sum;
}
double norm_of(int ranks) {
  double squares = 0;
  for (int i = 0; i < gradients; ++i)
    for (std::int64_t k = 0; k < counts[i]; ++k)
      squares += std::pow(sum_at(ranks, i, k), 2);
  return std::sqrt(squares);
}
float float_at(device_span s) {
  return static_cast<float>(decode(float32, to_host(s.data, 4).data()));
}
elements bytes_of(device_span s) {
  return to_host(s.data, static_cast<std::size_t>(s.count) * size_of(s.dtype));
}
void expect(device_span at, double factor, int ranks, int which) {
  elements const got = bytes_of(at);
  double const step = at.dtype == float32 || at.dtype == float64 ? 1e-6 : 1.0 / 128;  // of a number, rounded
  for (std::int64_t k = 0; k < at.count; ++k) {
    double const wanted = factor * sum_at(ranks, which, k);
    ASSERT_NEAR(decode(at.dtype, got.data() + static_cast<std::size_t>(k) * size_of(at.dtype)), wanted,
                std::abs(wanted) * step)
        << "gradient " << which << " element " << k;
  }
}

TEST(bucket_clip, scales_all_gradients_by_one_norm_on_all_ranks) {
  int const n = std::min(4, device_count());
  for (std::optional<dtype> const wire : {std::optional<dtype>(), std::optional(bfloat16)})
    for (bool const of_program : {false, true}) {
      auto ranks = communicator::create_all(first_devices(n));
      std::vector<float> norms(ranks.size());
      on_each(runtime::current(), ranks, [&](communicator& c) {
        gradient_buckets g(c, {.bucket_bytes = 4096, .average = false, .reduce_as = wire});
        buffer const memory(1_MiB);
        double* at = memory.data<double>();
        for (int i = 0; i < gradients; ++i) {
          if (of_program)
            g.add("g", {}, {at, counts[i], types[i]});
          else
            g.add("g", counts[i], types[i]);
          at += counts[i] + 3;
        }
        g.build();
        double const norm = norm_of(n);
        for (double const most : {no_limit, norm * 2, norm / 3, 0.0}) {
          write_and_mark(g, c.rank());
          g.finish(current_stream());
          device_span const where = g.clip(most, current_stream());
          EXPECT_EQ(where.count, 1);
          EXPECT_EQ(where.dtype, float32);
          float const got = float_at(where);
          EXPECT_NEAR(got, norm, norm * 1e-6);
          norms[static_cast<std::size_t>(c.rank())] = got;
          for (int i = 0; i < gradients; ++i)
            expect(g.reduced(i), std::min(1.0, most / norm), n, i);
        }
      });
      for (float const other : norms)
        EXPECT_EQ(other, norms[0]);
    }
}

TEST(bucket_clip, a_norm_that_is_not_finite_scales_nothing) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  g.add("a", 4);
  g.build();
  for (double const bad : {no_limit, std::numeric_limits<double>::quiet_NaN()}) {
    elements const wrote = encode(float32, {1, 2, bad, -3});
    copy(g.gradient(0).data, wrote.data(), wrote.size());
    g.mark_ready(0, current_stream());
    g.finish(current_stream());
    EXPECT_FALSE(std::isfinite(float_at(g.clip(1, current_stream()))));
    // A reduction may change the bits of what is no number.
    elements const got = bytes_of(g.gradient(0));
    EXPECT_FALSE(std::isfinite(decode(float32, got.data() + 8)));
    for (int i : {0, 1, 3})
      EXPECT_EQ(decode(float32, got.data() + i * 4), decode(float32, wrote.data() + i * 4)) << i;
  }
}

TEST(bucket_clip, of_a_captured_step_is_of_each_launch) {
  runtime own(simulated{.devices = 2, .memory = 16_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(2));
  on_each(own, ranks, [&](communicator& c) {
    stream const s;
    stream_guard const here(s);
    gradient_buckets g(c, {.average = false});
    g.add("g", 4);
    g.build();
    device_span norm;
    graph step = graph::capture(s, [&] {
      copy(s, g.gradient(0).data, g.parameter(0).data, 16);
      g.mark_ready(0, s);
      g.finish(s);
      norm = g.clip(1, s);
    });
    for (double const v : {1.5, 0.125}) {
      elements const e = encode(float32, {v, v, v, v});
      copy(s, g.parameter(0).data, e.data(), e.size());
      step.launch(s);
      EXPECT_EQ(float_at(norm), static_cast<float>(4 * v));
      EXPECT_EQ(bytes_of(g.gradient(0)),
                v > 1 ? encode(float32, {0.5, 0.5, 0.5, 0.5}) : encode(float32, {.25, .25, .25, .25}));
    }
  });
}

// Nothing has run on the device when it returns.
TEST(bucket_clip, does_not_wait_on_the_host) {
  runtime own(simulated{.devices = 1, .memory = 4_MiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(1));
  gradient_buckets g(ranks[0]);
  g.add("a", 4);
  g.build();
  stream const s;
  s.wait(current_stream());
  g.mark_ready(0, s);
  g.finish(s);
  (void)g.clip(1, s);
  EXPECT_FALSE(s.query());
}

// What the refused call has scaled is not scaled again, and its norm stays.
TEST(bucket_clip, of_two_buckets_may_be_refused_and_repeated) {
  for (std::uint64_t call = 1; call <= 6; ++call) {
    runtime own(simulated{.devices = 1, .memory = 4_MiB});
    runtime_guard const in(own);
    auto ranks = communicator::create_all(first_devices(1));
    gradient_buckets g(ranks[0], {.bucket_bytes = 1});
    g.add("a", 1), g.add("b", 1);
    g.build();
    for (int i : {1, 0}) {
      elements const e = encode(float32, {i == 0 ? 3. : 4.});
      copy(g.gradient(i).data, e.data(), e.size());
      g.mark_ready(i, current_stream());
    }
    g.finish(current_stream());
    simulation::of(own).fail_call("enqueue", call);
    EXPECT_NE(refusal<error>([&] { (void)g.clip(1, current_stream()); }), "") << call;
    device_span const norm = g.clip(1, current_stream());
    EXPECT_EQ(float_at(norm), 5) << call;
    EXPECT_EQ(bytes_of(g.gradient(0)), encode(float32, {3. / 5})) << call;
    EXPECT_EQ(bytes_of(g.gradient(1)), encode(float32, {4. / 5})) << call;
  }
}

// The norm is told as float32: beyond that it is not finite.
TEST(bucket_clip, of_a_norm_beyond_its_type_scales_nothing) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  g.add("a", 4);
  g.build();
  elements const large = encode(float32, {3e38, 3e38, 3e38, 3e38});
  copy(g.gradient(0).data, large.data(), large.size());
  g.mark_ready(0, current_stream());
  g.finish(current_stream());
  EXPECT_EQ(float_at(g.clip(1, current_stream())), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bytes_of(g.gradient(0)), large);
}

TEST(bucket_clip, during_a_step_or_of_integers_is_refused) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  g.add("a", 4), g.add("b", 4);
  EXPECT_NE(refusal<invalid_use>([&] { (void)g.clip(1, current_stream()); }), "");
  g.build();
  (void)g.clip(1, current_stream());
  g.mark_ready(0, current_stream());
  std::string const under_way = refusal<invalid_use>([&] { (void)g.clip(1, current_stream()); });
  EXPECT_NE(under_way.find("\"a\" (gradient 0) is ready, and its step is not finished"), std::string::npos)
      << under_way;
  g.mark_ready(1, current_stream());
  g.finish(current_stream());
  for (double const bad : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(refusal<invalid_use>([&] { (void)g.clip(bad, current_stream()); }).find("max_norm is "),
              std::string::npos);
  if (device_count() > 1) {
    EXPECT_NE(refusal<invalid_use>([&] { (void)g.clip(1, default_stream(device(1))); }).find("gpu:1"),
              std::string::npos);
  }
  gradient_buckets whole(ranks[0]);
  whole.add("steps", 1, int64);
  whole.build();
  std::string const said = refusal<not_supported>([&] { (void)whole.clip(1, current_stream()); });
  EXPECT_NE(said.find("\"steps\" (gradient 0) of int64"), std::string::npos) << said;
}

}  // namespace
}  // namespace weir::clip_of_buckets
