// The model's kernels and the order they run in: one source for GPUs and for simulated devices.
// Threads: see model.h.
#include "model.h"

#include <algorithm>
#include <cmath>

#include "text.h"
#include "weir/copy.h"
#include "weir/parallel_for.h"

namespace trainer {
namespace {

using std::int32_t;
using std::int64_t;
using std::size_t;

using index = std::uint32_t;  // no activation has 2^32 elements, and dividing 32 bits is many times faster

struct look_up {  // x[r, c, e] = table[inputs[r, c], e]
  float* x;
  float const* table;
  int32_t const* inputs;
  index embedding;
  WEIR_FN void operator()(size_t i) const {
    index const place = static_cast<index>(i) / embedding, e = static_cast<index>(i) % embedding;
    x[i] = table[static_cast<index>(inputs[place]) * embedding + e];
  }
};

struct add_bias {
  float* y;
  float const* bias;
  index columns;
  WEIR_FN void operator()(size_t i) const { y[i] += bias[static_cast<index>(i) % columns]; }
};

struct add_bias_relu {
  float* y;
  float const* bias;
  index columns;
  WEIR_FN void operator()(size_t i) const {
    float const v = y[i] + bias[static_cast<index>(i) % columns];
    y[i] = v > 0 ? v : 0;
  }
};

struct relu_backward {  // dh is zero where the activation was
  float* dh;
  float const* h;
  WEIR_FN void operator()(size_t i) const {
    if (!(h[i] > 0)) dh[i] = 0;
  }
};

struct softmax_loss {  // row r: losses[r] = -log softmax(logits)[target]; logits become scale * their gradient
  float* logits;
  float* losses;
  int32_t const* targets;
  int vocabulary;
  float scale;
  WEIR_FN void operator()(size_t r) const {
    float* const row = logits + r * vocabulary;
    float top = row[0];
    for (int j = 1; j < vocabulary; ++j) top = row[j] > top ? row[j] : top;
    float const of_target = row[targets[r]];
    float sum = 0;
    for (int j = 0; j < vocabulary; ++j) sum += row[j] = expf(row[j] - top);
    losses[r] = logf(sum) + top - of_target;
    float const factor = scale / sum;
    for (int j = 0; j < vocabulary; ++j) row[j] *= factor;
    row[targets[r]] -= scale;
  }
};

struct column_sums {  // out[j] = sum over the rows, in order
  float* out;
  float const* in;
  int rows, columns;
  WEIR_FN void operator()(size_t j) const {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += in[static_cast<size_t>(r) * columns + j];
    out[j] = sum;
  }
};

struct embedding_gradient {  // the sum over the places where character i / embedding stands, in their order
  float* out;
  float const* dx;
  int32_t const* starts;
  int32_t const* places;
  int embedding;
  WEIR_FN void operator()(size_t i) const {
    size_t const character = i / embedding, e = i % embedding;
    float sum = 0;
    for (int32_t k = starts[character]; k < starts[character + 1]; ++k) sum += dx[static_cast<size_t>(places[k]) * embedding + e];
    out[i] = sum;
  }
};

struct momentum_step {
  float* value;
  float* velocity;
  float const* gradient;
  float rate, momentum;
  WEIR_FN void operator()(size_t i) const {
    velocity[i] = momentum * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
};

template <class F>
void run(std::int64_t n, std::initializer_list<weir::use> uses, F f, weir::here at = weir::here::current()) {
  weir::parallel_for(weir::current_stream(), static_cast<size_t>(n), uses, f, at);
}

weir::tensor look_at(weir::span_of span, parameter_row const& row, weir::device on) {
  return weir::tensor::borrow(span.data, weir::shape{row.rows, row.columns}, weir::float32, on);
}

// Normal with the given deviation, from the seed and the place alone.
float normal(std::uint64_t seed, std::uint64_t place, float deviation) {
  constexpr double two_pi = 6.283185307179586;
  double const u = static_cast<double>((mix(seed ^ mix(2 * place)) >> 11) + 1) * 0x1p-53;
  double const v = static_cast<double>(mix(seed ^ mix(2 * place + 1)) >> 11) * 0x1p-53;
  return deviation * static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(two_pi * v));
}

}  // namespace

std::vector<parameter_row> parameter_table(model_shape const& s) {
  std::vector<parameter_row> rows{{"embedding", s.vocabulary, s.embedding}};
  int inputs = s.context * s.embedding;
  for (int layer = 0; layer <= s.layers; ++layer) {
    int const outputs = layer == s.layers ? s.vocabulary : s.hidden;
    std::string const name = layer == s.layers ? "out" : "dense" + std::to_string(layer + 1);
    rows.push_back({name + ".weight", inputs, outputs});
    rows.push_back({name + ".bias", 1, outputs});
    inputs = outputs;
  }
  return rows;
}

std::size_t bucket_bytes(model_shape const& s) {
  std::size_t all = 0;
  for (auto const& row : parameter_table(s)) all += static_cast<std::size_t>(row.count()) * sizeof(float);
  return std::clamp(all / 4, std::size_t{4} << 10, std::size_t{25} << 20);  // smaller ones cost more to start than to send
}

device_batch split_batch(weir::tensor storage, int rows, model_shape const& s) {
  device_batch b;
  b.rows = rows;
  b.inputs = storage.data<int32_t>();
  b.targets = b.inputs + static_cast<size_t>(rows) * s.context;
  b.starts = b.targets + rows;
  b.places = b.starts + s.vocabulary + 1;
  b.storage = std::move(storage);
  return b;
}

model::model(model_shape shape, weir::communicator& ranks, weir::gradient_buckets& buckets, std::uint64_t seed)
    : shape_(shape), buckets_(buckets), table_(parameter_table(shape)) {
  for (auto const& row : table_) buckets_.add(row.name, row.count(), weir::float32);
  buckets_.build();
  std::uint64_t place = 0;
  for (int i = 0; i < static_cast<int>(table_.size()); ++i) {
    auto const& row = table_[static_cast<size_t>(i)];
    parameter p{look_at(buckets_.parameter(i), row, ranks.device()), look_at(buckets_.gradient(i), row, ranks.device()), weir::zeros({row.rows, row.columns})};
    weir::tensor first = weir::empty({row.rows, row.columns}, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
    bool const is_bias = row.rows == 1;
    float const deviation = i == 0 ? 0.3f : std::sqrt(2.f / static_cast<float>(row.rows));
    for (float& v : first.host<float>()) v = is_bias ? 0 : normal(seed, place++, deviation);
    p.value.copy_(first, weir::non_blocking);
    ranks.broadcast(buckets_.parameter(i), 0);
    parameters_.push_back(std::move(p));
  }
}

model::trace model::forward(device_batch const& b) {
  trace t;
  int64_t const width = int64_t{shape_.context} * shape_.embedding;
  t.x = weir::empty({b.rows, width});
  weir::tensor const& table = parameters_[0].value;
  run(t.x.numel(), {weir::reads(table), weir::reads(b.storage), weir::writes(t.x)}, look_up{t.x.data<float>(), table.data<float>(), b.inputs, static_cast<index>(shape_.embedding)});
  weir::tensor const* in = &t.x;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    weir::tensor h = weir::empty({b.rows, shape_.hidden});
    weir::matmul_out(h, *in, weight(layer).value);
    run(h.numel(), {weir::reads(bias(layer).value), weir::updates(h)}, add_bias_relu{h.data<float>(), bias(layer).value.data<float>(), static_cast<index>(shape_.hidden)});
    t.h.push_back(std::move(h));
    in = &t.h.back();
  }
  t.logits = weir::empty({b.rows, shape_.vocabulary});
  weir::matmul_out(t.logits, *in, weight(shape_.layers).value);
  run(t.logits.numel(), {weir::reads(bias(shape_.layers).value), weir::updates(t.logits)},
      add_bias{t.logits.data<float>(), bias(shape_.layers).value.data<float>(), static_cast<index>(shape_.vocabulary)});
  return t;
}

weir::tensor model::logits(device_batch const& b) { return forward(b).logits; }

weir::tensor model::loss(device_batch const& b) {
  trace t = forward(b);
  weir::tensor rows = weir::empty({b.rows});
  run(b.rows, {weir::reads(b.storage), weir::updates(t.logits), weir::writes(rows)}, softmax_loss{t.logits.data<float>(), rows.data<float>(), b.targets, shape_.vocabulary, 0.f});
  return weir::sum(rows);
}

weir::tensor model::forward_backward(device_batch const& b, float scale) {
  trace t = forward(b);
  weir::tensor rows = weir::empty({b.rows});
  run(b.rows, {weir::reads(b.storage), weir::updates(t.logits), weir::writes(rows)},
      softmax_loss{t.logits.data<float>(), rows.data<float>(), b.targets, shape_.vocabulary, scale});
  weir::tensor total = weir::sum(rows).mul_(scale);

  weir::tensor d = std::move(t.logits);  // the gradient of what the layer at hand gave out
  for (int layer = shape_.layers; layer >= 0; --layer) {
    weir::tensor const& in = layer ? t.h[static_cast<size_t>(layer - 1)] : t.x;
    int const outputs = static_cast<int>(d.size(1));
    run(outputs, {weir::reads(d), weir::writes(bias(layer).gradient)}, column_sums{bias(layer).gradient.data<float>(), d.data<float>(), b.rows, outputs});
    buckets_.ready(2 + 2 * layer, weir::current_stream());
    weir::matmul_out(weight(layer).gradient, in, d, weir::transposed::left);
    buckets_.ready(1 + 2 * layer, weir::current_stream());
    weir::tensor din = weir::empty({b.rows, in.size(1)});
    weir::matmul_out(din, d, weight(layer).value, weir::transposed::right);
    if (layer) {
      run(din.numel(), {weir::reads(in), weir::updates(din)}, relu_backward{din.data<float>(), in.data<float>()});
      t.h.pop_back();  // this activation's memory serves the next allocation
    }
    d = std::move(din);
  }
  weir::tensor& table = parameters_[0].gradient;
  run(table.numel(), {weir::reads(d), weir::reads(b.storage), weir::writes(table)}, embedding_gradient{table.data<float>(), d.data<float>(), b.starts, b.places, shape_.embedding});
  buckets_.ready(0, weir::current_stream());
  return total;
}

void model::update(float rate, float momentum) {
  for (auto& p : parameters_) {
    run(p.value.numel(), {weir::updates(p.value), weir::updates(p.velocity), weir::reads(p.gradient)},
        momentum_step{p.value.data<float>(), p.velocity.data<float>(), p.gradient.data<float>(), rate, momentum});
  }
}

std::vector<float> model::save() const {
  std::vector<float> all;
  for (auto const& p : parameters_) {
    for (weir::tensor const& part : {p.value, p.velocity}) {
      size_t const at = all.size();
      all.resize(at + static_cast<size_t>(part.numel()));
      weir::copy(all.data() + at, part.data(), part.nbytes());
    }
  }
  return all;
}

void model::load(std::vector<float> const& all) {
  size_t at = 0;
  for (auto& p : parameters_) {
    for (weir::tensor* const part : {&p.value, &p.velocity}) {
      weir::copy(part->data(), all.data() + at, part->nbytes());
      at += static_cast<size_t>(part->numel());
    }
  }
}

}  // namespace trainer
