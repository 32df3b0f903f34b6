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

std::vector<saved_value> saved_values(model_shape const& s, optimizer o) {
  std::vector<saved_value> all;
  for (auto const& row : parameter_table(s)) {
    weir::shape const extents{row.rows, row.columns};
    all.push_back({row.name, extents});
    if (o == optimizer::adamw)
      all.push_back({row.name + ".mean", extents}), all.push_back({row.name + ".square", extents});
    else
      all.push_back({row.name + ".velocity", extents});
  }
  all.push_back({"optimizer.steps", {1}, weir::int64});
  all.push_back({"loss_scale", {2}});
  return all;
}

std::int64_t saved_floats(model_shape const& s, optimizer o) {
  std::int64_t n = 0;
  for (saved_value const& v : saved_values(s, o))
    n += v.floats();
  return n;
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

model::model(model_shape shape, model_options options, update_options const& update, weir::communicator& ranks,
             weir::gradient_buckets& buckets, std::uint64_t seed)
    : shape_(shape), options_(options), ranks_(ranks), buckets_(buckets), table_(parameter_table(shape)) {
  for (auto const& row : table_)
    buckets_.add(row.name, row.count(), weir::float32);
  loss_ = buckets_.add("loss", 1, weir::float32);  // known first, and reduced with the first gradients
  buckets_.build();
  std::uint64_t place = 0;
  for (int i = 0; i < loss_; ++i) {
    auto const& row = table_[static_cast<size_t>(i)];
    weir::shape const extents{row.rows, row.columns};
    parameter p{buckets_.parameter_tensor(i, extents), buckets_.gradient_tensor(i, extents), {}};
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
  optimizer_.emplace(optimizer_of(update));
  round_weights();
}

weir::optimizer model::optimizer_of(update_options const& o) {
  std::vector<weir::update_item> items = weir::items_of(buckets_);
  items[static_cast<size_t>(loss_)].rate = 0;  // it has no value to update
  double const most = o.clip > 0 ? static_cast<double>(o.clip) : INFINITY;
  weir::loss_scale* const scale = is_scaled() ? &scale_ : nullptr;
  weir::optimizer by =
      options_.by == optimizer::adamw
          ? weir::optimizer(weir::adamw(items, {.rate = o.rate, .decay = o.decay, .max_norm = most, .scale = scale}))
          : weir::sgd(items, {.rate = o.rate, .momentum = o.momentum, .max_norm = most, .scale = scale});
  std::vector<weir::state_part> const state = by.state();
  auto next = state.begin() + 3;  // behind the counts of steps and the rate
  for (int i = 0; i < loss_; ++i) {
    weir::device_span const value = buckets_.parameter(i);
    saved_.push_back(value);
    for (int k = 0; k < states_of(options_.by); ++k) {
      if (next != state.end()) {
        saved_.push_back(next++->data);
        continue;
      }
      // Without momentum there is no velocity, and the file has a place for it.
      weir::tensor const none = weir::zeros({value.count});
      no_velocities_.push_back(none);
      saved_.push_back({none.data(), value.count, weir::float32});
    }
  }
  saved_.push_back(state[0].data);
  saved_.push_back(scale_.state());
  return by;
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
  run(b.rows, {weir::reads(b.storage), weir::reads(scaling()), weir::updates(t.logits), weir::writes(rows)},
      softmax_loss{t.logits.data<float>(), rows.data<float>(), b.targets, shape_.vocabulary, scale,
                   static_cast<float const*>(scaling().data)});
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

void model::update(float rate) {
  optimizer_->set_rate(weir::current_stream(), rate);
  optimizer_->step(weir::current_stream());
  round_weights();
}

scaled model::scale() const {
  if (!is_scaled())
    return {};
  weir::stream_ref const s = weir::current_stream();
  return {scale_.read(s), static_cast<int>(optimizer_->skipped(s))};
}

weir::stamp model::save(weir::tensor const& into) const {
  auto* to = into.data<float>();
  weir::stamp last;
  for (weir::device_span const part : saved_) {
    size_t const bytes = static_cast<size_t>(part.count) * size_of(part.dtype);
    last = weir::copy(weir::current_stream(), to, part.data, bytes, weir::non_blocking);
    to += bytes / sizeof(float);
  }
  return last;
}

std::vector<weir::checkpoint_item> model::saved_items() const {
  std::vector<weir::checkpoint_item> items;
  auto next = saved_.begin();
  for (saved_value const& v : saved_values(shape_, options_.by))
    items.emplace_back(v.name, *next++, v.extents);
  return items;
}

void model::load(std::vector<float> const* all) {
  size_t at = 0;
  for (weir::device_span const part : saved_) {
    size_t const bytes = static_cast<size_t>(part.count) * size_of(part.dtype);
    if (all)
      weir::copy(part.data, all->data() + at, bytes);
    at += bytes / sizeof(float);
    ranks_.broadcast(part, 0);
  }
  round_weights();
}

}  // namespace trainer
