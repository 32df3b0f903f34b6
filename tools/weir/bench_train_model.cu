// Linear layers with relu and a squared error, and what all models share.
// Threads: see bench_train.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "bench_train.h"
#include "bench_train_kernels.h"

namespace weir::tool {
namespace {

constexpr std::int64_t summing_threads = 1 << 16;

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
    if (!(h[i] > 0))
      d[i] = 0;
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
tensor drawn(weir::shape shape, std::uint64_t seed, float scale) {
  tensor t = empty(shape);
  run(t.numel(), {writes(t)}, draw{t.data<float>(), seed, scale});
  return t;
}

class mlp final : public trained_model {
 public:
  mlp(model_shape const&, communicator&, std::size_t bucket_bytes);
  void forward_backward() override;
  double loss() const override;

 private:
  model_shape shape_;
  std::vector<tensor> weights_{}, biases_{}, weight_gradients_{}, bias_gradients_{}, h_{};
  tensor wanted_{}, ones_row_{}, sums_{};
};

mlp::mlp(model_shape const& s, communicator& ranks, std::size_t bucket_bytes)
    : trained_model(ranks, bucket_bytes, 1e-3f), shape_(s) {
  for (int l = 0; l < s.layers; ++l) {
    buckets_.add("weight", std::int64_t{s.width} * s.width);
    buckets_.add("bias", s.width);
  }
  buckets_.build();
  float const scale = 1 / std::sqrt(static_cast<float>(s.width));
  for (int l = 0; l < s.layers; ++l) {
    weights_.push_back(buckets_.parameter_tensor(2 * l, {s.width, s.width}));
    biases_.push_back(buckets_.parameter_tensor(2 * l + 1, {1, s.width}));
    weight_gradients_.push_back(buckets_.gradient_tensor(2 * l, {s.width, s.width}));
    bias_gradients_.push_back(buckets_.gradient_tensor(2 * l + 1, {1, s.width}));
    auto const seed = static_cast<std::uint64_t>(l) * 2;
    run(weights_.back().numel(), {writes(weights_.back())}, draw{weights_.back().data<float>(), seed, scale});
    run(s.width, {writes(biases_.back())}, draw{biases_.back().data<float>(), seed + 1, scale});
  }
  auto const own = 1000 + 2 * static_cast<std::uint64_t>(ranks.rank());
  h_.push_back(drawn({s.rows, s.width}, own, 1.7f));
  wanted_ = drawn({s.rows, s.width}, own + 1, 1.7f);
  ones_row_ = ones({1, s.rows});
  sums_ = empty({std::min(wanted_.numel(), summing_threads)});
  velocity_ = zeros({buckets_.parameters().count});
}

void mlp::forward_backward() {
  index const columns = static_cast<index>(shape_.width);
  for (int l = 0; l < shape_.layers; ++l) {
    auto const i = static_cast<size_t>(l);
    tensor y = empty({shape_.rows, shape_.width});
    matmul_out(y, h_[i], weights_[i]);
    run(y.numel(), {reads(biases_[i]), updates(y)}, bias_relu{y.data<float>(), biases_[i].data<float>(), columns});
    h_.push_back(std::move(y));
  }
  tensor d = empty({shape_.rows, shape_.width});
  run(sums_.numel(), {reads(h_.back()), reads(wanted_), writes(d), writes(sums_)},
      squared_error{d.data<float>(), sums_.data<float>(), h_.back().data<float>(), wanted_.data<float>(),
                    static_cast<size_t>(d.numel()), static_cast<size_t>(sums_.numel())});
  for (int l = shape_.layers - 1; l >= 0; --l) {
    auto const i = static_cast<size_t>(l);
    h_.pop_back();
    matmul_out(bias_gradients_[i], ones_row_, d);
    buckets_.mark_ready(2 * l + 1, current_stream());
    matmul_out(weight_gradients_[i], h_[i], d, transposed::left);
    buckets_.mark_ready(2 * l, current_stream());
    if (l == 0)
      break;
    tensor before = empty({shape_.rows, shape_.width});
    matmul_out(before, d, weights_[i], transposed::right);
    run(before.numel(), {reads(h_[i]), updates(before)}, relu_backward{before.data<float>(), h_[i].data<float>()});
    d = std::move(before);
  }
}

double mlp::loss() const {
  double const elements = static_cast<double>(shape_.rows) * shape_.width;
  return static_cast<double>(sum(sums_).item<float>()) / elements;
}

}  // namespace

void trained_model::update() {
  device_span const values = buckets_.parameters(), gradients = buckets_.gradients();
  auto const bytes = static_cast<size_t>(values.count) * sizeof(float);
  run_packs(velocity_, {updates(values.data, bytes), updates(velocity_), reads(gradients.data, bytes), writes(copies_)},
            momentum_step<bfloat16_t>{static_cast<float*>(values.data), velocity_.data<float>(),
                                      static_cast<float const*>(gradients.data),
                                      copies_.defined() ? copies_.data<bfloat16_t>() : nullptr, rate_});
}

void trained_model::reduce_alone() {
  for (int i = buckets_.size() - 1; i >= 0; --i)
    buckets_.mark_ready(i, current_stream());
  finish();
}

std::vector<model_shape> chosen_models(std::vector<std::string> const& names, model_shape const& own) {
  constexpr std::array<std::pair<std::string_view, model_shape>, 3> known{
      {{"large", {4096, 8, 2048}},
       {"small", {1024, 8, 1024}},
       {"transformer", {.width = 768, .layers = 12, .rows = 12, .heads = 12}}}};
  for (std::string const& name : names) {
    if (std::ranges::find(known, name, [](auto const& k) { return k.first; }) == known.end())
      throw invalid_use("bench train", "no model \"" + name + "\"", "Choose among large, small and transformer",
                        source_location::current());
  }
  std::vector<model_shape> chosen;
  if (own.width > 0)
    chosen.push_back(own);
  for (auto const& [name, shape] : known) {
    if (names.empty() ? own.width == 0 : std::ranges::find(names, name) != names.end())
      chosen.push_back(shape);
  }
  return chosen;
}

std::unique_ptr<trained_model> make_model(model_shape const& s, communicator& ranks, std::size_t bucket_bytes) {
  if (s.heads > 0)
    return make_transformer(s, ranks, bucket_bytes);
  return std::make_unique<mlp>(s, ranks, bucket_bytes);
}

}  // namespace weir::tool
