// The order of the model's kernels.
// Threads: see model.h.
#include "model.h"

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "text.h"
#include "weir/copy.h"

namespace trainer {
namespace {

using namespace kernels;
using std::int64_t;

template <class F>
void run(std::int64_t n, std::initializer_list<weir::memory_use> uses, F f,
         weir::source_location at = weir::source_location::current()) {
  weir::parallel_for(weir::current_stream(), static_cast<size_t>(n), uses, f, at);
}

// Calls f with a value of the C++ type that corresponds to the dtype.
template <class F>
void with_type(weir::dtype type, F f) {
  switch (type) {
    case weir::float16: return f(weir::float16_t{});
    case weir::bfloat16: return f(weir::bfloat16_t{});
    default: return f(float{});
  }
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

std::vector<std::string> saved_names(std::string const& parameter, optimizer o) {
  if (o == optimizer::adamw)
    return {parameter, parameter + ".mean", parameter + ".square"};
  return {parameter, parameter + ".velocity"};
}

bool kept_until_backward(model_shape const& s, model_options const& how, int layer) {
  if (!how.recompute)
    return true;
  int const segment = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(s.layers))));
  // The backward pass begins with the last segment, so recomputing its activations would save no memory.
  return (layer + 1) % segment == 0 || layer >= (s.layers - 1) / segment * segment;
}

std::size_t bucket_bytes(model_shape const& s) {
  std::size_t all = 0;
  for (auto const& row : parameter_table(s))
    all += static_cast<std::size_t>(row.count()) * sizeof(float);
  // Smaller reductions are dominated by their latency.
  return std::clamp(all / 4, std::size_t{4} << 10, std::size_t{25} << 20);
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

model::model(model_shape shape, model_options options, weir::communicator& ranks, weir::gradient_buckets& buckets,
             std::uint64_t seed)
    : shape_(shape), options_(options), ranks_(ranks), buckets_(buckets), table_(parameter_table(shape)) {
  for (auto const& row : table_)
    buckets_.add(row.name, row.count(), weir::float32);
  loss_ = buckets_.add("loss", 1, weir::float32);  // known first, and reduced with the first gradients
  buckets_.build();
  // The block begins with the last one added, the loss: it has no value to update.
  weir::device_span const last = buckets_.parameter(loss_ - 1), all = buckets_.parameters();
  std::int64_t const before = static_cast<float*>(last.data) - static_cast<float*>(all.data);
  values_ = {last.data, all.count - before, weir::float32};
  gradients_ = {buckets_.gradient(loss_ - 1).data, values_.count, weir::float32};
  for (int k = 0; k < states_of(options_.by); ++k)
    states_.push_back(weir::zeros({values_.count}));
  std::uint64_t place = 0;
  for (int i = 0; i < loss_; ++i) {
    auto const& row = table_[static_cast<size_t>(i)];
    weir::shape const extents{row.rows, row.columns};
    parameter p{buckets_.parameter_tensor(i, extents), buckets_.gradient_tensor(i, extents), {}, {}};
    std::int64_t const at = p.value.data<float>() - static_cast<float*>(values_.data);
    p.saved.push_back(p.value.view({row.count()}));
    for (weir::tensor const& state : states_)
      p.saved.push_back(state.slice(0, at, at + row.count()));
    if (row.rows > 1) {  // biases stay 0
      float const deviation = i == 0 ? 0.3f : std::sqrt(2.f / static_cast<float>(row.rows));
      run(row.count(), {weir::writes(p.value)}, draw_normal{p.value.data<float>(), seed, place, deviation});
      place += static_cast<std::uint64_t>(row.count());
    }
    ranks.broadcast(buckets_.parameter(i), 0);
    if (options_.type != weir::float32 && i % 2 == 1)
      p.half = weir::empty({row.rows, row.columns}, {.dtype = options_.type});
    parameters_.push_back(std::move(p));
  }
  if (options_.type == weir::float16) {
    scaling_ = weir::zeros({loss_scale::count});
    scaling_.slice(0, loss_scale::scale, loss_scale::scale + 1).fill_(loss_scale::at_first);
  }
  round_weights();
}

void model::round_weights() {
  for (auto& p : parameters_) {
    if (p.half.defined())
      p.half.copy_(p.value, weir::non_blocking);
  }
}

void model::hidden(trace& t, int layer) const {
  weir::tensor const& in = layer ? t.h[static_cast<size_t>(layer - 1)] : t.x;
  weir::tensor h = weir::empty({in.size(0), shape_.hidden}, {.dtype = options_.type});
  weir::matmul_out(h, in, factor(layer));
  weir::tensor const& b = bias(layer).value;
  with_type(options_.type, [&]<class T>(T) {
    run(h.numel(), {weir::reads(b), weir::updates(h)},
        add_bias_relu<T>{h.data<T>(), b.data<float>(), static_cast<index>(shape_.hidden)});
  });
  t.h[static_cast<size_t>(layer)] = std::move(h);
}

model::trace model::forward(device_batch const& b, bool for_training) const {
  trace t;
  int64_t const width = int64_t{shape_.context} * shape_.embedding;
  t.x = weir::empty({b.rows, width}, {.dtype = options_.type});
  weir::tensor const& table = parameters_[0].value;
  with_type(options_.type, [&]<class T>(T) {
    run(t.x.numel(), {weir::reads(table), weir::reads(b.storage), weir::writes(t.x)},
        look_up<T>{t.x.data<T>(), table.data<float>(), b.inputs, static_cast<index>(shape_.embedding)});
  });
  t.h.resize(static_cast<size_t>(shape_.layers));
  for (int layer = 0; layer < shape_.layers; ++layer) {
    hidden(t, layer);
    if (layer && !(for_training && kept_until_backward(shape_, options_, layer - 1)))
      t.h[static_cast<size_t>(layer - 1)] = {};
  }
  t.logits = weir::empty({b.rows, shape_.vocabulary});
  weir::matmul_out(t.logits, t.h.back(), factor(shape_.layers));
  weir::tensor const& last = bias(shape_.layers).value;
  run(t.logits.numel(), {weir::reads(last), weir::updates(t.logits)},
      add_bias{t.logits.data<float>(), last.data<float>(), static_cast<index>(shape_.vocabulary)});
  return t;
}

weir::tensor const& model::activation(trace& t, int layer) const {
  int from = layer;
  while (from >= 0 && !t.h[static_cast<size_t>(from)].defined())
    --from;
  while (from < layer)
    hidden(t, ++from);
  return t.h[static_cast<size_t>(layer)];
}

weir::tensor model::logits(device_batch const& b) const {
  return forward(b, false).logits;
}

weir::tensor model::loss(device_batch const& b) const {
  trace t = forward(b, false);
  weir::tensor rows = weir::empty({b.rows});
  run(b.rows, {weir::reads(b.storage), weir::updates(t.logits), weir::writes(rows)},
      softmax_loss{t.logits.data<float>(), rows.data<float>(), b.targets, shape_.vocabulary, 0.f, nullptr});
  return weir::sum(rows);
}

weir::tensor model::step_loss() const {
  return buckets_.gradient_tensor(loss_, {});
}

void model::forward_backward(device_batch const& b, float scale, part_of_step part) {
  trace t = forward(b, true);
  weir::tensor rows = weir::empty({b.rows});
  run(b.rows, {weir::reads(b.storage), weir::reads(scaling_), weir::updates(t.logits), weir::writes(rows)},
      softmax_loss{t.logits.data<float>(), rows.data<float>(), b.targets, shape_.vocabulary, scale, scaling()});
  weir::tensor const total = weir::sum(rows).mul_(scale);
  if (part.first)
    step_loss().copy_(total, weir::non_blocking);
  else
    step_loss().add_(total);

  auto const ready = [&](int gradient) {
    if (part.last)
      buckets_.mark_ready(gradient, weir::current_stream());
  };
  ready(loss_);
  weir::tensor d = std::move(t.logits).to(options_.type);  // gradient of the current layer's output
  for (int layer = shape_.layers; layer >= 0; --layer) {
    weir::tensor const in = layer ? activation(t, layer - 1) : t.x;
    int const outputs = static_cast<int>(d.size(1));
    weir::tensor& of_bias = bias(layer).gradient;
    with_type(options_.type, [&]<class T>(T) {
      run(outputs, {weir::reads(d), weir::updates(of_bias)},
          column_sums<T>{of_bias.data<float>(), d.data<T>(), b.rows, outputs, !part.first});
    });
    ready(2 + 2 * layer);
    weir::matmul_out(weight(layer).gradient, in, d, weir::transposed::left, part.first ? 0 : 1);
    ready(1 + 2 * layer);
    weir::tensor din = weir::empty({b.rows, in.size(1)}, {.dtype = options_.type});
    weir::matmul_out(din, d, factor(layer), weir::transposed::right);
    if (layer) {
      with_type(options_.type, [&]<class T>(T) {
        run(din.numel(), {weir::reads(in), weir::updates(din)}, relu_backward<T>{din.data<T>(), in.data<T>()});
      });
      t.h.pop_back();  // with `in`: the next allocation can reuse this activation's memory
    }
    d = std::move(din);
  }
  weir::tensor& table = parameters_[0].gradient;
  with_type(options_.type, [&]<class T>(T) {
    run(table.numel(), {weir::reads(d), weir::reads(b.storage), weir::updates(table)},
        embedding_gradient<T>{table.data<float>(), d.data<T>(), b.starts, b.places, shape_.embedding, !part.first});
  });
  ready(0);
}

void model::update(std::int64_t step, update_options const& o) {
  auto const gradients = weir::reads(gradients_);
  auto const* const from = static_cast<float const*>(gradients_.data);
  if (scaling_.defined())
    run(gradients_.count, {gradients, weir::updates(scaling_)}, look_for_overflow{from, scaling()});
  weir::tensor square_norm;
  if (o.clip > 0) {
    constexpr std::int64_t most_threads = 1 << 16;
    weir::tensor const sums = weir::empty({std::min(gradients_.count, most_threads)});
    auto const threads = static_cast<size_t>(sums.numel());
    run(sums.numel(), {gradients, weir::writes(sums)},
        sum_squares{sums.data<float>(), from, static_cast<size_t>(gradients_.count), threads});
    square_norm = weir::sum(sums);
  }
  read_gradient const read{from, scaling(), square_norm.defined() ? square_norm.data<float>() : nullptr,
                           o.clip > 0 ? o.clip : INFINITY};
  auto const values = weir::updates(values_);
  auto* const value = static_cast<float*>(values_.data);
  if (options_.by == optimizer::sgd) {
    run(values_.count, {values, weir::updates(states_[0]), gradients, weir::reads(scaling_), weir::reads(square_norm)},
        momentum_step{value, states_[0].data<float>(), read, o.rate, o.momentum});
  } else {
    adamw_step s{.value = value,
                 .mean = states_[0].data<float>(),
                 .square = states_[1].data<float>(),
                 .gradient = read,
                 .rate = o.rate,
                 .decay = o.decay,
                 .mean_bias = 0,
                 .square_bias = 0};
    auto const bias = [step](float keep) {
      return static_cast<float>(1 - std::pow(static_cast<double>(keep), static_cast<double>(step + 1)));
    };
    s.mean_bias = bias(s.keep_mean), s.square_bias = bias(s.keep_square);
    run(values_.count,
        {values, weir::updates(states_[0]), weir::updates(states_[1]), gradients, weir::reads(scaling_),
         weir::reads(square_norm)},
        s);
  }
  if (scaling_.defined())
    run(1, {weir::updates(scaling_)}, next_scale{scaling()});
  round_weights();
}

scaled model::scale() const {
  if (!scaling_.defined())
    return {};
  weir::tensor const now = scaling_.cpu();
  return {now.host<float>()[loss_scale::scale], static_cast<int>(now.host<float>()[loss_scale::skipped])};
}

std::int64_t model::saved_floats() const {
  std::int64_t n = 0;
  for (auto const& row : table_)
    n += (1 + states_of(options_.by)) * row.count();
  return n;
}

weir::stamp model::save(weir::tensor const& into) const {
  std::int64_t at = 0;
  weir::stamp last;
  for (auto const& p : parameters_) {
    for (weir::tensor const& part : p.saved) {
      last = weir::tensor(into.slice(0, at, at + part.numel())).copy_(part, weir::non_blocking);
      at += part.numel();
    }
  }
  return last;
}

std::vector<weir::checkpoint_item> model::saved_items() const {
  std::vector<weir::checkpoint_item> items;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameter_row const& row = table_[i];
    auto const names = saved_names(row.name, options_.by);
    for (size_t k = 0; k < names.size(); ++k)
      items.emplace_back(names[k], parameters_[i].saved[k].view({row.rows, row.columns}));
  }
  return items;
}

void model::load(std::vector<float> const* all) {
  size_t at = 0;
  for (parameter& p : parameters_) {
    for (weir::tensor& part : p.saved) {
      if (all)
        weir::copy(part.data(), all->data() + at, part.nbytes());
      at += static_cast<size_t>(part.numel());
      ranks_.broadcast({part.data(), part.numel(), weir::float32}, 0);
    }
  }
  round_weights();
}

}  // namespace trainer
