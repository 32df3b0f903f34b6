// The kernels and the order of a step.
// Threads: see bench_train.h.
#include <cmath>

#include "bench_train.h"
#include "weir/copy.h"
#include "weir/parallel_for.h"

namespace weir::tool {
namespace {

using index = std::uint32_t;
constexpr float rate = 1e-3f, momentum = 0.9f;
constexpr std::int64_t summing_threads = 1 << 16;

WEIR_HOST_DEVICE inline std::uint64_t mix(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

struct draw {  // uniform in [-scale, scale)
  float* out;
  std::uint64_t seed;
  float scale;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    out[i] = (static_cast<float>(mix(seed ^ mix(i)) >> 40) * 0x1p-23f - 1.f) * scale;
  }
};
struct bias_relu {
  float* y;
  float const* bias;
  index columns;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    float const v = y[i] + bias[static_cast<index>(i) % columns];
    y[i] = v > 0 ? v : 0.f;
  }
};
struct relu_backward {
  float* d;
  float const* h;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    if (!(h[i] > 0)) d[i] = 0;
  }
};
struct squared_error {  // d = its gradient, behind relu; sums[i]: the squares of one thread
  float* d;
  float* sums;
  float const* out;
  float const* wanted;
  size_t count, threads;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    float const scale = 2.f / static_cast<float>(count);
    float sum = 0;
    for (size_t k = i; k < count; k += threads) {
      float const e = out[k] - wanted[k];
      sum += e * e;
      d[k] = out[k] > 0 ? scale * e : 0.f;
    }
    sums[i] = sum;
  }
};
struct momentum_step {
  float* value;
  float* velocity;
  float const* gradient;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    velocity[i] = momentum * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
};

template <class F>
void run(std::int64_t n, std::initializer_list<memory_use> uses, F f) {
  parallel_for(current_stream(), static_cast<size_t>(n), uses, f);
}
tensor drawn(weir::shape shape, std::uint64_t seed, float scale) {
  tensor t = empty(shape);
  run(t.numel(), {writes(t)}, draw{t.data<float>(), seed, scale});
  return t;
}

}  // namespace

struct mlp::state {
  mlp_shape shape;
  gradient_buckets buckets;
  std::vector<tensor> weights{}, biases{}, weight_gradients{}, bias_gradients{}, h{};
  tensor wanted{}, ones_row{}, sums{}, velocity{};
};

mlp::mlp(mlp_shape s, communicator& ranks) : state_(new state{s, gradient_buckets(ranks)}) {
  state& m = *state_;
  for (int l = 0; l < s.layers; ++l) {
    m.buckets.add("weight", std::int64_t{s.width} * s.width);
    m.buckets.add("bias", s.width);
  }
  m.buckets.build();
  float const scale = 1 / std::sqrt(static_cast<float>(s.width));
  auto const view = [&](device_span span, std::int64_t rows) {
    return tensor::from_blob(span.data, weir::shape{rows, s.width}, float32, ranks.device());
  };
  for (int l = 0; l < s.layers; ++l) {
    m.weights.push_back(view(m.buckets.parameter(2 * l), s.width));
    m.biases.push_back(view(m.buckets.parameter(2 * l + 1), 1));
    m.weight_gradients.push_back(view(m.buckets.gradient(2 * l), s.width));
    m.bias_gradients.push_back(view(m.buckets.gradient(2 * l + 1), 1));
    auto const seed = static_cast<std::uint64_t>(l) * 2;
    run(m.weights.back().numel(), {writes(m.weights.back())}, draw{m.weights.back().data<float>(), seed, scale});
    run(s.width, {writes(m.biases.back())}, draw{m.biases.back().data<float>(), seed + 1, scale});
  }
  auto const own = 1000 + 2 * static_cast<std::uint64_t>(ranks.rank());
  m.h.push_back(drawn({s.rows, s.width}, own, 1.7f));
  m.wanted = drawn({s.rows, s.width}, own + 1, 1.7f);
  m.ones_row = ones({1, s.rows});
  m.velocity = zeros({m.buckets.parameters().count});
}
mlp::~mlp() = default;

void mlp::forward_backward() {
  state& m = *state_;
  index const columns = static_cast<index>(m.shape.width);
  for (int l = 0; l < m.shape.layers; ++l) {
    auto const i = static_cast<size_t>(l);
    tensor y = empty({m.shape.rows, m.shape.width});
    matmul_out(y, m.h[i], m.weights[i]);
    run(y.numel(), {reads(m.biases[i]), updates(y)}, bias_relu{y.data<float>(), m.biases[i].data<float>(), columns});
    m.h.push_back(std::move(y));
  }
  tensor d = empty({m.shape.rows, m.shape.width});
  m.sums = empty({std::min(d.numel(), summing_threads)});
  run(m.sums.numel(), {reads(m.h.back()), reads(m.wanted), writes(d), writes(m.sums)},
      squared_error{d.data<float>(), m.sums.data<float>(), m.h.back().data<float>(), m.wanted.data<float>(),
                    static_cast<size_t>(d.numel()), static_cast<size_t>(m.sums.numel())});
  for (int l = m.shape.layers - 1; l >= 0; --l) {
    auto const i = static_cast<size_t>(l);
    m.h.pop_back();
    matmul_out(m.bias_gradients[i], m.ones_row, d);
    m.buckets.mark_ready(2 * l + 1, current_stream());
    matmul_out(m.weight_gradients[i], m.h[i], d, transposed::left);
    m.buckets.mark_ready(2 * l, current_stream());
    if (l == 0) break;
    tensor before = empty({m.shape.rows, m.shape.width});
    matmul_out(before, d, m.weights[i], transposed::right);
    run(before.numel(), {reads(m.h[i]), updates(before)}, relu_backward{before.data<float>(), m.h[i].data<float>()});
    d = std::move(before);
  }
}

void mlp::finish() { state_->buckets.finish(current_stream()); }

void mlp::update() {
  state& m = *state_;
  device_span const values = m.buckets.parameters(), gradients = m.buckets.gradients();
  auto const bytes = static_cast<size_t>(values.count) * sizeof(float);
  run(values.count, {updates(values.data, bytes), updates(m.velocity), reads(gradients.data, bytes)},
      momentum_step{static_cast<float*>(values.data), m.velocity.data<float>(),
                    static_cast<float const*>(gradients.data)});
}

void mlp::reduce_alone() {
  for (int i = state_->buckets.size() - 1; i >= 0; --i) state_->buckets.mark_ready(i, current_stream());
  finish();
}

double mlp::loss() const {
  double const elements = static_cast<double>(state_->shape.rows) * state_->shape.width;
  return static_cast<double>(sum(state_->sums).item<float>()) / elements;
}

}  // namespace weir::tool
