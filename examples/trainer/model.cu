// The passes of a transformer: each part of the forward pass leaves its part of the backward pass.
// Threads: see trainer.h.
#include <cmath>

#include "trainer.h"
#include "weir/half.h"
#include "weir/parallel_rows.h"

namespace trainer {
namespace {

using weir::matmul, weir::matmul_out, weir::reads, weir::tensor, weir::transposed, weir::updates;

template <class F>  // a row of `of` for each team
void run(tensor const& of, weir::memory_uses u, F f, weir::source_location at = weir::source_location::current()) {
  weir::parallel_for_rows(weir::current_stream(), static_cast<size_t>(of.numel() / of.size(-1)), u, f, at);
}

// gelu(x) = x * portion(x), by the usual approximation of the normal distribution.
WEIR_HOST_DEVICE inline float portion(float x) {
  // -ffast-math divides by a reciprocal that is no number for infinity: the power stays finite.
  return 1 / (1 + expf(fminf(-1.5957691f * (x + 0.044715f * x * x * x), 80.f)));
}

}  // namespace

// Rows are tokens: those of all sequences at place 0, then at place 1, … T: the type of activations. Arithmetic is in
// float; results are rounded when they are stored.
template <class T>
struct pass {
  model& m;
  model_shape const& s;
  weir::device_span tokens;
  std::vector<std::function<void()>> back{};  // the parts of the backward pass, the last one first
  tensor x{}, dx{};                           // what the layers add to, and the gradient by it. float32
  tensor d{};                                 // the gradient by what the next part of the backward pass gave

  static tensor empty(std::int64_t rows, std::int64_t columns, weir::dtype type = weir::dtype_of<T>) {
    return weir::empty({rows, columns}, {.dtype = type});
  }
  tensor linear(size_t i, tensor const& in, tensor out = {}, double beta = 0) {
    model::parameter& by = m.parameters_[i];
    if (!out.defined())
      out = empty(in.size(0), by.value.size(1));
    matmul_out(out, in, by.factor, transposed::none, beta);
    back.push_back([=, this, &by] {
      matmul_out(by.gradient, in, d, transposed::left);
      m.buckets_.mark_ready(static_cast<int>(i), weir::current_stream());
      if (i > 0)
        d = matmul(d, by.factor, transposed::right);
    });
    return out;
  }
  tensor normalized() {  // (x - mean) / deviation
    tensor const out = empty(x.size(0), s.width), scales = empty(x.size(0), 1, weir::float32);
    int const columns = s.width;
    T* const y = out.data<T>();
    float *const from = x.data<float>(), *const scale = scales.data<float>();
    run(x, {reads(x), writes(out), writes(scales)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
      scale[r] = t.normalize(y + r * columns, from + r * columns, columns);
    });
    back.push_back([=, this] {
      if (!dx.defined())
        dx = weir::zeros({out.size(0), columns});
      float* const all = dx.data<float>();
      T* const of_y = d.data<T>();
      run(out, {updates(dx), updates(d), reads(out), reads(scales)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
        T *const dy = of_y + r * columns, *const at = y + r * columns;
        float const mean = t.sum_of(columns, [=](int c) { return static_cast<float>(dy[c]); }) / columns;
        float const along = t.sum_of(columns, [=](int c) { return dy[c] * at[c]; }) / columns;
        t.each(columns, [=](int c) { dy[c] = all[r * columns + c] += scale[r] * (dy[c] - mean - at[c] * along); });
      });
    });
    return out;
  }
  tensor gelu(tensor const& in) {
    tensor const out = weir::empty_like(in);
    T *const u = in.data<T>(), *const g = out.data<T>();
    int const columns = 4 * s.width;
    run(in, {reads(in), writes(out)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
      t.each(columns, [=, i = r * columns](int c) { g[i + c] = u[i + c] * portion(u[i + c]); });
    });
    back.push_back([=, this] {
      T* const of_g = d.data<T>();
      run(in, {updates(d), reads(in)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
        t.each(columns, [=, i = r * columns](int c) {
          float const v = u[i + c], p = portion(v), slope = p * (1 - p) * 1.5957691f * (1 + 0.134145f * v * v);
          of_g[i + c] = of_g[i + c] * (p + v * slope);
        });
      });
    });
    return out;
  }
  // [sequences * heads, context, D] of the columns of each head, D = width / heads: part `which` of `of`.
  tensor heads(tensor const& t, int which, int of) const {
    std::int64_t const depth = s.width / s.heads, all = t.size(0) / s.context * s.heads;
    return t.view({s.context, all, of * depth}).slice(2, which * depth, (which + 1) * depth).transpose(0, 1);
  }
  tensor attention(tensor const& qkv) {
    tensor const q = heads(qkv, 0, 3), k = heads(qkv, 1, 3), v = heads(qkv, 2, 3), p = matmul(q, k, transposed::right);
    float const scale = 1 / std::sqrt(static_cast<float>(s.width / s.heads));
    int const places = s.context;
    T* const of_p = p.data<T>();
    run(p, {updates(p)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
      t.softmax(of_p + r * places, places, static_cast<int>(r % places) + 1, scale);  // of no later place
    });
    tensor const out = empty(qkv.size(0), s.width);
    tensor o = heads(out, 0, 1);
    matmul_out(o, p, v);
    back.push_back([=, this] {
      tensor const d_out = heads(d, 0, 1), ds = matmul(d_out, v, transposed::right), d_qkv = weir::empty_like(qkv);
      tensor dq = heads(d_qkv, 0, 3), dk = heads(d_qkv, 1, 3), dv = heads(d_qkv, 2, 3);
      matmul_out(dv, p, d_out, transposed::left);
      T* const of_s = ds.data<T>();
      run(ds, {updates(ds), reads(p)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
        t.softmax_gradient(of_s + r * places, of_p + r * places, places, scale);
      });
      matmul_out(dq, ds, k);
      matmul_out(dk, ds, q, transposed::left);
      d = d_qkv;
    });
    return out;
  }
  tensor logits() {
    int const sequences = static_cast<int>(tokens.count) / (s.context + 1), known = s.vocabulary;
    int const columns = known + s.context;
    tensor const hot = empty(sequences * s.context, columns);  // of each row one for its token, and one for its place
    T* const out = hot.data<T>();
    auto const* const token = static_cast<std::uint8_t const*>(tokens.data);
    run(hot, {reads(tokens), writes(hot)}, [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
      int const place = known + static_cast<int>(r / sequences);
      t.each(columns, [=](int c) { out[r * columns + c] = c == token[r] || c == place ? 1.f : 0.f; });
    });
    x = linear(0, hot, empty(hot.size(0), s.width, weir::float32));
    size_t i = 1;
    for (int layer = 0; layer < s.layers; ++layer, i += 4) {
      linear(i + 1, attention(linear(i, normalized())), x, 1);
      linear(i + 3, gelu(linear(i + 2, normalized())), x, 1);
    }
    return linear(i, normalized(), empty(hot.size(0), known, weir::float32));
  }
  // Returns: the sum of all losses. Then d is `factor` times the gradient by the logits.
  tensor loss(float factor) {
    tensor const scores = logits(), all = empty(scores.size(0), 1, weir::float32);
    d = empty(scores.size(0), s.vocabulary);
    int const columns = s.vocabulary;
    T* const out = d.data<T>();
    float *const p = scores.data<float>(), *const losses = all.data<float>();
    auto const* const target = static_cast<std::uint8_t const*>(tokens.data) + scores.size(0) / s.context;
    run(scores, {updates(scores), reads(tokens), writes(d), writes(all)},
        [=] WEIR_HOST_DEVICE(size_t r, weir::row_team t) {
          float* const row = p + r * columns;
          float const score = row[target[r]];
          t.sync();  // another thread writes it
          float const of_all = t.softmax(row, columns, columns);
          if (t.lane() == 0)
            losses[r] = of_all - score;  // finite where the softmax is 0
          t.each(columns, [=](int c) { out[r * columns + c] = factor * (row[c] - (c == target[r] ? 1.f : 0.f)); });
        });
    return weir::sum(all);
  }
};

template <class F>
auto model::with_pass(weir::device_span tokens, F f) {
  if (type_ == weir::bfloat16)
    return f(pass<weir::bfloat16_t>{*this, shape_, tokens});
  return f(pass<float>{*this, shape_, tokens});
}

model::model(model_shape const& s, weir::dtype type, weir::adamw_options how, weir::communicator& ranks)
    : shape_(s),
      type_(type),
      buckets_(ranks, {.bucket_bytes = 12 * size_t(s.width) * s.width * s.layers, .average = false}) {
  int const c = s.width;  // so that a bucket has a quarter of the layers' gradients
  buckets_.add("embedding", {s.vocabulary + s.context, c});
  for (int layer = 0; layer < s.layers; ++layer) {
    std::string const of = "layer " + std::to_string(layer) + " ";
    buckets_.add(of + "qkv", {c, 3 * c});
    buckets_.add(of + "projection", {c, c});
    buckets_.add(of + "up", {c, 4 * c});
    buckets_.add(of + "down", {4 * c, c});
  }
  buckets_.add("out", {c, s.vocabulary});  // not the embedding: its gradient is the first to be reduced
  int const loss = buckets_.add("loss", 1);
  buckets_.build();
  for (int i = 0; i < loss; ++i) {
    tensor value = buckets_.parameter_tensor(i);
    double const part = i > 0 && i % 2 == 0 ? 1 / std::sqrt(2 * s.layers) : 1;  // layers add less, the more there are
    value.normal_(0, part / std::sqrt(i ? value.size(0) : c));
    tensor const factor = type == weir::float32 ? value : weir::empty(value.shape(), {.dtype = type});
    parameters_.push_back({value, buckets_.gradient_tensor(i), factor});
  }
  ranks.broadcast(buckets_.parameters(), 0);
  round_parameters();
  std::vector<weir::update_item> items = weir::items_of(buckets_);
  items.back().rate = 0;  // the loss is no parameter
  optimizer_.emplace(weir::adamw(items, how));
}

void model::round_parameters() {
  for (parameter& p : parameters_) {
    if (type_ != weir::float32)
      p.factor.copy_(p.value, weir::non_blocking);
  }
}

tensor model::step(weir::device_span tokens, float factor, double rate) {
  weir::stream_ref const on = weir::current_stream();
  tensor loss = buckets_.gradient_tensor(buckets_.size() - 1, weir::shape{});
  optimizer_->set_rate(on, rate);
  with_pass(tokens, [&](auto&& p) {
    loss.copy_(p.loss(factor).mul_(factor), weir::non_blocking);
    buckets_.mark_ready(buckets_.size() - 1, on);
    for (; !p.back.empty(); p.back.pop_back())  // each lets go of what the forward pass kept for it
      p.back.back()();
  });
  buckets_.finish(on);
  optimizer_->step(on);
  round_parameters();
  return loss;
}
tensor model::loss(weir::device_span tokens) {
  return with_pass(tokens, [](auto&& p) { return p.loss(0); });
}
tensor model::logits(weir::device_span tokens) {
  return with_pass(tokens, [](auto&& p) { return p.logits(); });
}

}  // namespace trainer
