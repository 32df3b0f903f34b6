// The order of a transformer's kernels: layers of attention and of two linear layers with gelu, each behind a
// normalization and added to what it read. Residuals and their gradients are float32, as with PyTorch's autocast.
// Attention is products and a softmax, and keeps its probabilities: their traffic bounds its speed and its memory.
// Threads: see bench_train.h.
//
// Rows R = context x sequences, width C, heads of D = C / heads, S = sequences x heads of them:
//   q, k, v [S, context, D] are views of one [R, 3 C], whose columns are [heads, 3, D]
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench_train.h"
#include "bench_train_layers.h"
#include "runtime/base/text.h"

namespace weir::tool {
namespace {

using namespace layers;
using std::int64_t;

struct parameter {
  int number;              // in the buckets
  tensor value, gradient;  // float32
  tensor factor;           // of T: a copy of the value, or itself
  float const* values() const { return value.data<float>(); }
};

// The parameters of a layer, in the order of the forward pass.
enum place : std::uint8_t {
  norm1_weight,
  norm1_bias,
  qkv_weight,
  qkv_bias,
  proj_weight,
  proj_bias,  // of attention
  norm2_weight,
  norm2_bias,
  up_weight,
  up_bias,
  down_weight,
  down_bias,  // of the linear layers
  in_a_layer
};

template <class T>
class transformer final : public trained_model {
 public:
  transformer(model_shape const&, communicator&, std::size_t bucket_bytes);
  void forward_backward() override;
  double loss() const override { return static_cast<double>(sum(losses_).item<float>()) / rows_; }

 private:
  struct normed {  // x: what was normalized
    tensor x, out, spreads;
  };
  struct kept {  // of a layer, for its backward pass
    normed before, between;
    tensor qkv, o, u;
    std::vector<tensor> p;  // probabilities, by part
  };

  parameter const& of_layer(int layer, int at) const {
    return parameters_[static_cast<size_t>(2 + layer * in_a_layer + at)];
  }
  parameter const& last(int at) const { return parameters_[parameters_.size() - 3 + static_cast<size_t>(at)]; }
  tensor activation(weir::shape s) const { return empty(s, {.dtype = dtype_of<T>}); }
  tensor head_views(tensor const& t, int which, int of) const;

  normed normalize(tensor x, tensor const& more, parameter const* bias, parameter const& weight,
                   parameter const& shift) const;
  template <class F>
  void each_part(F) const;  // f(from, to)
  float score_scale() const { return 1 / std::sqrt(static_cast<float>(shape_.width / shape_.heads)); }
  tensor attend(kept&) const;
  void ready(parameter const& p) { buckets_.mark_ready(p.number, current_stream()); }
  void linear_backward(parameter const& weight, tensor const& in, tensor const& d);
  void sum_rows(tensor const& d, parameter const& of, normed const* n = nullptr, parameter const* scaled = nullptr);
  void normalize_back(tensor& d, tensor& half, bool first, tensor const& dy, normed const&, parameter const& weight,
                      parameter const& shift);
  tensor attend_backward(kept&, tensor const& d) const;

  model_shape shape_;
  int rows_, packs_;
  std::vector<parameter> parameters_{};
  tensor tokens_{}, of_tokens_{}, losses_{};  // of_tokens: one-hot rows
};

template <class T>
transformer<T>::transformer(model_shape const& s, communicator& ranks, std::size_t bucket_bytes)
    : trained_model(ranks, bucket_bytes, 0.003f),
      shape_(s),
      rows_(s.context * s.rows),
      packs_(s.width / static_cast<int>(per_pack)) {
  struct row {
    int64_t rows, columns;
    float drawn;   // the most that a value is
    float at = 0;  // of all values, if none is drawn
  };
  std::vector<row> table;
  float const usual = 0.02f * std::sqrt(3.f), to_residual = usual / std::sqrt(2 * static_cast<float>(s.layers));
  int64_t const c = s.width;
  table.push_back({s.vocabulary, c, usual});
  table.push_back({s.context, c, usual});
  for (int l = 0; l < s.layers; ++l) {
    for (row const r : {row{1, c, 0, 1}, row{1, c, 0}, row{c, 3 * c, usual}, row{1, 3 * c, 0}, row{c, c, to_residual},
                        row{1, c, 0}, row{1, c, 0, 1}, row{1, c, 0}, row{c, 4 * c, usual}, row{1, 4 * c, 0},
                        row{4 * c, c, to_residual}, row{1, c, 0}})
      table.push_back(r);
  }
  for (row const r : {row{1, c, 0, 1}, row{1, c, 0}, row{c, s.vocabulary, usual}})
    table.push_back(r);
  for (size_t i = 0; i < table.size(); ++i)
    buckets_.add("parameter " + std::to_string(i), table[i].rows * table[i].columns);
  buckets_.build();
  velocity_ = zeros({buckets_.parameters().count});
  if constexpr (!std::is_same_v<T, float>)
    copies_ = empty({velocity_.numel()}, {.dtype = dtype_of<T>});
  auto* const values = static_cast<float*>(buckets_.parameters().data);
  for (size_t i = 0; i < table.size(); ++i) {
    row const& r = table[i];
    int const number = static_cast<int>(i);
    weir::shape const extents{r.rows, r.columns};
    tensor all = buckets_.parameter_tensor(number, extents);
    auto* const value = all.data<float>();
    if (r.drawn > 0)
      run(all.numel(), {writes(all)}, draw{value, i, r.drawn});
    else
      all.fill_(static_cast<double>(r.at));
    tensor const gradient = buckets_.gradient_tensor(number, extents);
    tensor factor = all;
    if (copies_.defined()) {
      factor = copies_.slice(0, value - values, value - values + all.numel()).view(extents);
      factor.copy_(all, non_blocking);
    }
    parameters_.push_back({number, all, gradient, factor});
  }
  tokens_ = empty({s.context + 1, s.rows}, {.dtype = int32});
  run(s.rows, {writes(tokens_)},
      draw_text{tokens_.data<std::int32_t>(),
                static_cast<std::uint64_t>(ranks.rank()) * static_cast<std::uint64_t>(s.rows), s.context, s.rows,
                s.vocabulary});
  of_tokens_ = activation({rows_, s.vocabulary});
  run(of_tokens_.numel(), {reads(tokens_), writes(of_tokens_)},
      one_hot<T>{of_tokens_.data<T>(), tokens_.data<std::int32_t>(), static_cast<index>(s.vocabulary)});
  losses_ = zeros({rows_});
}

// [S, context, D] of the columns of each head: part `which` of `of`.
template <class T>
tensor transformer<T>::head_views(tensor const& t, int which, int of) const {
  int64_t const all = int64_t{shape_.rows} * shape_.heads, deep = shape_.width / shape_.heads;
  return t.view({shape_.context, all, of * deep}).slice(2, which * deep, (which + 1) * deep).transpose(0, 1);
}

template <class T>
typename transformer<T>::normed transformer<T>::normalize(tensor x, tensor const& more, parameter const* bias,
                                                          parameter const& weight, parameter const& shift) const {
  normed n{x, activation(x.shape()), empty({rows_, 2})};
  if (more.defined())
    n.x = empty(x.shape());
  run_rows(rows_,
           {reads(x), reads(more), reads(weight.value), reads(shift.value), reads(bias ? bias->value : tensor()),
            writes(n.out), updates(n.x), writes(n.spreads)},
           add_and_normalize<T>{n.out.template data<T>(), n.x.template data<float>(),
                                reinterpret_cast<spread*>(n.spreads.template data<float>()), x.template data<float>(),
                                more.defined() ? more.template data<T>() : nullptr, bias ? bias->values() : nullptr,
                                weight.values(), shift.values(), packs_});
  return n;
}

// Places [from, to) attend to the places before `to` alone: four such parts need 10 of 16 scores.
template <class T>
template <class F>
void transformer<T>::each_part(F f) const {
  int const most = std::max((shape_.context / 4 + 7) / 8 * 8, 8);
  for (int from = 0; from < shape_.context; from += most)
    f(from, std::min(from + most, shape_.context));
}

template <class T>
tensor transformer<T>::attend(kept& k) const {
  tensor const q = head_views(k.qkv, 0, 3), keys = head_views(k.qkv, 1, 3), v = head_views(k.qkv, 2, 3);
  tensor const o = activation({rows_, shape_.width}), all = head_views(o, 0, 1);
  each_part([&](int from, int to) {
    tensor p = activation({q.size(0), to - from, to}), out = all.slice(1, from, to);
    matmul_out(p, q.slice(1, from, to), keys.slice(1, 0, to), transposed::right);
    run_rows(p.size(0) * p.size(1), {updates(p)},
             causal_softmax<T>{p.template data<T>(), score_scale(), from, to - from, to / static_cast<int>(per_pack)});
    matmul_out(out, p, v.slice(1, 0, to));
    k.p.push_back(std::move(p));
  });
  return o;
}

// Returns: the gradient by qkv.
template <class T>
tensor transformer<T>::attend_backward(kept& k, tensor const& d) const {
  tensor const q = head_views(k.qkv, 0, 3), keys = head_views(k.qkv, 1, 3), v = head_views(k.qkv, 2, 3);
  tensor const d_heads = head_views(d, 0, 1), all = activation({rows_, 3 * int64_t{shape_.width}});
  tensor const dq = head_views(all, 0, 3), dk = head_views(all, 1, 3), dv = head_views(all, 2, 3);
  std::vector<std::pair<int, int>> parts;
  each_part([&](int from, int to) { parts.emplace_back(from, to); });
  for (bool first = true; !parts.empty(); parts.pop_back(), first = false) {  // the last part writes all of dk and dv
    auto const [from, to] = parts.back();
    tensor const p = std::move(k.p.back()), d_part = d_heads.slice(1, from, to), q_part = q.slice(1, from, to);
    k.p.pop_back();
    tensor s = activation(p.shape()), dq_part = dq.slice(1, from, to), dk_part = dk.slice(1, 0, to),
           dv_part = dv.slice(1, 0, to);
    matmul_out(dv_part, p, d_part, transposed::left, first ? 0 : 1);
    matmul_out(s, d_part, v.slice(1, 0, to), transposed::right);
    run_rows(p.size(0) * p.size(1), {updates(s), reads(p)},
             causal_softmax_backward<T>{s.template data<T>(), p.template data<T>(), score_scale(), from, to - from,
                                        to / static_cast<int>(per_pack)});
    matmul_out(dq_part, s, keys.slice(1, 0, to));
    matmul_out(dk_part, s, q_part, transposed::left, first ? 0 : 1);
  }
  return all;
}

template <class T>
void transformer<T>::linear_backward(parameter const& weight, tensor const& in, tensor const& d) {
  tensor gradient = weight.gradient;
  matmul_out(gradient, in, d, transposed::left);
  ready(weight);
}

// The sums of d over its rows, and with `n` those of d times what n normalized.
template <class T>
void transformer<T>::sum_rows(tensor const& d, parameter const& of, normed const* n, parameter const* scaled) {
  int const packs = static_cast<int>(d.size(1)) / static_cast<int>(per_pack);
  int const chunks = std::clamp((1 << 16) / packs, 1, rows_);
  tensor part = empty({chunks, d.size(1)}), products = n ? empty({chunks, d.size(1)}) : tensor();
  tensor const x = n ? n->x : tensor(), spreads = n ? n->spreads : tensor();
  run_packs(part, {reads(d), reads(x), reads(spreads), writes(part), writes(products)},
            sum_chunks<T>{part.template data<float>(), n ? products.template data<float>() : nullptr,
                          d.template data<T>(), n ? x.template data<float>() : nullptr,
                          n ? reinterpret_cast<spread const*>(spreads.template data<float>()) : nullptr,
                          static_cast<index>(rows_), static_cast<index>(packs), static_cast<index>(chunks)});
  auto const finish_sum = [&](tensor const& parts, parameter const& to) {
    run_rows(packs, {reads(parts), writes(to.gradient)},
             sum_parts{to.gradient.template data<float>(), parts.template data<float>(), packs, chunks});
    ready(to);
  };
  finish_sum(part, of);
  if (n)
    finish_sum(products, *scaled);
}

template <class T>
void transformer<T>::normalize_back(tensor& d, tensor& half, bool first, tensor const& dy, normed const& n,
                                    parameter const& weight, parameter const& shift) {
  if constexpr (std::is_same_v<T, float>)
    half = {};
  else
    half = activation(d.shape());
  run_rows(rows_, {updates(d), writes(half), reads(dy), reads(n.x), reads(n.spreads), reads(weight.value)},
           normalize_backward<T>{d.data<float>(), half.defined() ? half.data<T>() : nullptr, first, dy.data<T>(),
                                 n.x.template data<float>(),
                                 reinterpret_cast<spread const*>(n.spreads.template data<float>()), weight.values(),
                                 packs_});
  if constexpr (std::is_same_v<T, float>)
    half = d;
  sum_rows(dy, shift, &n, &weight);
}

template <class T>
void transformer<T>::forward_backward() {
  int64_t const c = shape_.width;
  auto const packs_of = [](int64_t columns) { return static_cast<index>(columns / static_cast<int64_t>(per_pack)); };
  parameter const &of_token = parameters_[0], &of_place = parameters_[1];
  auto const* const tokens = tokens_.data<std::int32_t>();

  tensor x = empty({rows_, c});
  run_packs(x, {writes(x), reads(of_token.value), reads(of_place.value), reads(tokens_)},
            embed{x.data<float>(), of_token.values(), of_place.values(), tokens, packs_of(c),
                  static_cast<index>(shape_.rows)});
  std::vector<kept> layers;
  tensor more;
  parameter const* bias = nullptr;
  for (int l = 0; l < shape_.layers; ++l) {
    auto const p = [&](int at) -> parameter const& { return of_layer(l, at); };
    kept k;
    k.before = normalize(x, more, bias, p(norm1_weight), p(norm1_bias));
    k.qkv = activation({rows_, 3 * c});
    matmul_out(k.qkv, k.before.out, p(qkv_weight).factor);
    run_packs(k.qkv, {updates(k.qkv), reads(p(qkv_bias).value)},
              add_bias<T>{k.qkv.template data<T>(), p(qkv_bias).values(), packs_of(3 * c)});
    k.o = attend(k);
    more = activation({rows_, c});
    matmul_out(more, k.o, p(proj_weight).factor);
    k.between = normalize(k.before.x, more, &p(proj_bias), p(norm2_weight), p(norm2_bias));
    k.u = activation({rows_, 4 * c});
    matmul_out(k.u, k.between.out, p(up_weight).factor);
    tensor g = activation({rows_, 4 * c});
    run_packs(g, {updates(k.u), writes(g), reads(p(up_bias).value)},
              bias_gelu<T>{g.template data<T>(), k.u.template data<T>(), p(up_bias).values(), packs_of(4 * c)});
    more = activation({rows_, c});
    matmul_out(more, g, p(down_weight).factor);
    bias = &p(down_bias);
    x = k.between.x;
    layers.push_back(std::move(k));
  }
  normed end = normalize(x, more, bias, last(0), last(1));
  more = x = {};
  tensor d_half = activation({rows_, shape_.vocabulary});  // the logits, then gradients of rows, as factors
  matmul_out(d_half, end.out, last(2).factor);
  run_rows(rows_, {updates(d_half), writes(losses_), reads(tokens_)},
           cross_entropy<T>{d_half.data<T>(), losses_.data<float>(), tokens + shape_.rows,
                            1 / static_cast<float>(rows_), static_cast<int>(packs_of(shape_.vocabulary))});

  linear_backward(last(2), end.out, d_half);
  tensor dy = activation({rows_, c}), d = empty({rows_, c});
  matmul_out(dy, d_half, last(2).factor, transposed::right);
  normalize_back(d, d_half, true, dy, end, last(0), last(1));
  end = {};
  for (int l = shape_.layers - 1; l >= 0; --l) {
    auto const p = [&](int at) -> parameter const& { return of_layer(l, at); };
    kept k = std::move(layers.back());
    layers.pop_back();
    sum_rows(d_half, p(down_bias));
    tensor du = activation({rows_, 4 * c}), g = activation({rows_, 4 * c});
    matmul_out(du, d_half, p(down_weight).factor, transposed::right);
    run_packs(g, {writes(g), updates(k.u), reads(du)},
              gelu_backward<T>{g.template data<T>(), k.u.template data<T>(), du.template data<T>()});
    du = {};
    linear_backward(p(down_weight), g, d_half);
    g = {};
    sum_rows(k.u, p(up_bias));
    linear_backward(p(up_weight), k.between.out, k.u);
    matmul_out(dy, k.u, p(up_weight).factor, transposed::right);
    k.u = {};
    normalize_back(d, d_half, false, dy, k.between, p(norm2_weight), p(norm2_bias));
    k.between = {};
    sum_rows(d_half, p(proj_bias));
    linear_backward(p(proj_weight), k.o, d_half);
    matmul_out(dy, d_half, p(proj_weight).factor, transposed::right);
    tensor const d_qkv = attend_backward(k, dy);
    sum_rows(d_qkv, p(qkv_bias));
    linear_backward(p(qkv_weight), k.before.out, d_qkv);
    matmul_out(dy, d_qkv, p(qkv_weight).factor, transposed::right);
    normalize_back(d, d_half, false, dy, k.before, p(norm1_weight), p(norm1_bias));
  }
  run_packs(of_place.gradient, {writes(of_place.gradient), reads(d)},
            place_gradient{of_place.gradient.template data<float>(), d.data<float>(), packs_of(c),
                           static_cast<index>(shape_.rows)});
  ready(of_place);
  linear_backward(of_token, of_tokens_, d_half);
}

}  // namespace

std::unique_ptr<trained_model> make_transformer(model_shape const& s, communicator& ranks, std::size_t bucket_bytes) {
  auto const pack = static_cast<int>(per_pack);
  if (s.width % s.heads || s.width % pack || s.context % pack || s.vocabulary % pack)
    throw invalid_use("bench train",
                      base::text(s.heads, " heads in a width of ", s.width, ", a context of ", s.context, ", ",
                                 s.vocabulary, " tokens"),
                      base::text("Use multiples of ", pack, ", and a width that the heads divide"),
                      source_location::current());
  if (s.type == float32)
    return std::make_unique<transformer<float>>(s, ranks, bucket_bytes);
  return std::make_unique<transformer<bfloat16_t>>(s, ranks, bucket_bytes);
}

}  // namespace weir::tool
