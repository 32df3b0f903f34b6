// The kernels of the transformer of `weir bench train`. T is the type of activations: bfloat16_t or float. Arithmetic
// is in float; results are rounded when they are stored. Rows are tokens: all sequences at place 0, then at place 1, …
// Threads: each writes its own elements, or its row by its team.
#pragma once
#include <cmath>

#include "bench_train_kernels.h"

namespace weir::tool::layers {

// A text in which three of four tokens follow from the one before. Index: a sequence.
struct draw_text {
  std::int32_t* out;  // [context + 1, sequences]
  std::uint64_t first_sequence;
  int context, sequences, vocabulary;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    auto const most = static_cast<std::uint64_t>(vocabulary);
    std::uint64_t const place = (first_sequence + i) * (static_cast<std::uint64_t>(context) + 1);
    std::uint64_t token = 0;
    for (int t = 0; t <= context; ++t) {
      std::uint64_t const u = mix(5000 ^ mix(place + static_cast<std::uint64_t>(t)));
      token = (t > 0 && u % 4 ? mix(token) : u >> 32) % most;
      out[static_cast<std::size_t>(t) * static_cast<std::size_t>(sequences) + i] = static_cast<std::int32_t>(token);
    }
  }
};

template <class T>
struct one_hot {  // out[r, v] = tokens[r] == v
  T* out;
  std::int32_t const* tokens;
  index vocabulary;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    out[i] = static_cast<index>(tokens[static_cast<index>(i) / vocabulary]) == static_cast<index>(i) % vocabulary ? 1.f
                                                                                                                  : 0.f;
  }
};

struct embed {  // x[r] = of_token[tokens[r]] + of_place[r / sequences]
  float* x;
  float const* of_token;
  float const* of_place;
  std::int32_t const* tokens;
  index packs, sequences;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    index const r = static_cast<index>(i) / packs, q = static_cast<index>(i) % packs;
    pack<float> a = pack_of(of_token, static_cast<index>(tokens[r]) * packs + q);
    pack<float> const b = pack_of(of_place, r / sequences * packs + q);
    for (std::size_t k = 0; k < per_pack; ++k)
      a.at[k] += b.at[k];
    pack_of(x, i) = a;
  }
};
struct place_gradient {  // of_place[t] = the sum of d over the sequences
  float* of_place;
  float const* d;
  index packs, sequences;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    index const t = static_cast<index>(i) / packs, q = static_cast<index>(i) % packs;
    pack<float> sum{};
    for (index s = 0; s < sequences; ++s) {
      pack<float> const one = pack_of(d, (std::size_t{t} * sequences + s) * packs + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        sum.at[k] += one.at[k];
    }
    pack_of(of_place, i) = sum;
  }
};

struct spread {  // of a row: out = (x - mean) * scale
  float mean, scale;
};

// Row: sum = x + more + bias, unless `more` is null; out = its normalized values * weight + shift.
template <class T>
struct add_and_normalize {
  T* out;
  float* sum;  // unused without `more`
  spread* spreads;
  float const* x;
  T const* more;
  float const* bias;
  float const* weight;
  float const* shift;
  int packs;
  WEIR_HOST_DEVICE void operator()(std::size_t r, row_team t) const {
    std::size_t const row = r * static_cast<std::size_t>(packs);
    float const count = static_cast<float>(packs) * per_pack;
    float total = 0;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<float> v = pack_of(x, row + q);
      if (more) {
        pack<T> const m = pack_of(more, row + q);
        pack<float> const b = pack_of(bias, q);
        for (std::size_t k = 0; k < per_pack; ++k)
          v.at[k] += m.at[k] + b.at[k];
        pack_of(sum, row + q) = v;
      }
      for (std::size_t k = 0; k < per_pack; ++k)
        total += v.at[k];
    }
    float const* const from = more ? sum : x;
    float const mean = t.sum(total) / count;
    float squares = 0;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<float> const v = pack_of(from, row + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        squares += (v.at[k] - mean) * (v.at[k] - mean);
    }
    float const scale = 1 / sqrtf(t.sum(squares) / count + 1e-5f);
    if (t.lane() == 0)
      spreads[r] = {mean, scale};
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<float> const v = pack_of(from, row + q), w = pack_of(weight, q), s = pack_of(shift, q);
      pack<T> y;
      for (std::size_t k = 0; k < per_pack; ++k)
        y.at[k] = (v.at[k] - mean) * scale * w.at[k] + s.at[k];
      pack_of(out, row + q) = y;
    }
  }
};

// Row: adds the gradient by x to d; `rounded` is d as a factor of products.
template <class T>
struct normalize_backward {
  float* d;
  T* rounded;  // null: there is none
  bool first;  // d is written, not added to
  T const* dy;
  float const* x;
  spread const* spreads;
  float const* weight;
  int packs;
  WEIR_HOST_DEVICE void operator()(std::size_t r, row_team t) const {
    std::size_t const row = r * static_cast<std::size_t>(packs);
    float const count = static_cast<float>(packs) * per_pack;
    spread const s = spreads[r];
    float sum = 0, product = 0;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> const g = pack_of(dy, row + q);
      pack<float> const v = pack_of(x, row + q), w = pack_of(weight, q);
      for (std::size_t k = 0; k < per_pack; ++k) {
        float const gw = g.at[k] * w.at[k];
        sum += gw;
        product += gw * (v.at[k] - s.mean) * s.scale;
      }
    }
    sum = t.sum(sum) / count;
    product = t.sum(product) / count;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> const g = pack_of(dy, row + q);
      pack<float> const v = pack_of(x, row + q), w = pack_of(weight, q);
      pack<float> all{};
      if (!first)
        all = pack_of(d, row + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        all.at[k] += s.scale * (g.at[k] * w.at[k] - sum - (v.at[k] - s.mean) * s.scale * product);
      pack_of(d, row + q) = all;
      if (!rounded)
        continue;
      pack<T> half;
      for (std::size_t k = 0; k < per_pack; ++k)
        half.at[k] = all.at[k];
      pack_of(rounded, row + q) = half;
    }
  }
};

// Sums over rows, in two steps: chunk c has the rows c, c + chunks, … `x`: the terms are in * x, normalized.
template <class T>
struct sum_chunks {
  float* part;    // [chunks, columns]
  float* scaled;  // the same, of in * x; null with x
  T const* in;
  float const* x;
  spread const* spreads;
  index rows, packs, chunks;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    index const first = static_cast<index>(i) / packs, q = static_cast<index>(i) % packs;
    pack<float> sum{}, product{};
    for (index r = first; r < rows; r += chunks) {
      std::size_t const at = std::size_t{r} * packs + q;
      pack<T> const g = pack_of(in, at);
      for (std::size_t k = 0; k < per_pack; ++k)
        sum.at[k] += g.at[k];
      if (!x)
        continue;
      pack<float> const v = pack_of(x, at);
      spread const s = spreads[r];
      for (std::size_t k = 0; k < per_pack; ++k)
        product.at[k] += g.at[k] * (v.at[k] - s.mean) * s.scale;
    }
    pack_of(part, i) = sum;
    if (x)
      pack_of(scaled, i) = product;
  }
};
struct sum_parts {  // row: a pack of columns
  float* out;
  float const* part;
  int packs, chunks;
  WEIR_HOST_DEVICE void operator()(std::size_t q, row_team t) const {
    pack<float> sum{};
    for (int c = t.lane(); c < chunks; c += t.size()) {
      pack<float> const one = pack_of(part, static_cast<std::size_t>(c) * static_cast<std::size_t>(packs) + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        sum.at[k] += one.at[k];
    }
    for (std::size_t k = 0; k < per_pack; ++k)
      sum.at[k] = t.sum(sum.at[k]);
    if (t.lane() == 0)
      pack_of(out, q) = sum;
  }
};

template <class T>
struct add_bias {
  T* y;
  float const* bias;
  index packs;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    pack<T> v = pack_of(y, i);
    pack<float> const b = pack_of(bias, static_cast<index>(i) % packs);
    for (std::size_t k = 0; k < per_pack; ++k)
      v.at[k] = v.at[k] + b.at[k];
    pack_of(y, i) = v;
  }
};

// The probability that a normal number is below x.
WEIR_HOST_DEVICE inline float below(float x) {
  return 0.5f * (1 + erff(x * 0.70710678f));
}
template <class T>
struct bias_gelu {  // u += bias; y = gelu(u)
  T* y;
  T* u;
  float const* bias;
  index packs;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    pack<T> v = pack_of(u, i), g;
    pack<float> const b = pack_of(bias, static_cast<index>(i) % packs);
    for (std::size_t k = 0; k < per_pack; ++k) {
      v.at[k] = v.at[k] + b.at[k];
      g.at[k] = v.at[k] * below(v.at[k]);
    }
    pack_of(u, i) = v;
    pack_of(y, i) = g;
  }
};
template <class T>
struct gelu_backward {  // y = gelu(u) again; u = d * gelu'(u)
  T* y;
  T* u;
  T const* d;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    pack<T> v = pack_of(u, i), g;
    pack<T> const dy = pack_of(d, i);
    for (std::size_t k = 0; k < per_pack; ++k) {
      float const x = v.at[k], less = below(x);
      g.at[k] = x * less;
      v.at[k] = dy.at[k] * (less + x * 0.39894228f * expf(-0.5f * x * x));
    }
    pack_of(u, i) = v;
    pack_of(y, i) = g;
  }
};

// Row: the scores of place `first` + row % rows; softmax of those up to its own place, the others become 0.
template <class T>
struct causal_softmax {
  T* s;
  float scale;
  int first, rows, packs;
  WEIR_HOST_DEVICE void operator()(std::size_t r, row_team t) const {
    int const last = first + static_cast<int>(r % static_cast<std::size_t>(rows));
    std::size_t const row = r * static_cast<std::size_t>(packs);
    float most = -INFINITY;
    for (int q = t.lane(); q * static_cast<int>(per_pack) <= last; q += t.size()) {
      pack<T> const v = pack_of(s, row + q);
      for (int k = 0; k < static_cast<int>(per_pack); ++k)
        if (q * static_cast<int>(per_pack) + k <= last)
          most = fmaxf(most, v.at[k]);
    }
    most = t.max(most);
    float total = 0;
    for (int q = t.lane(); q * static_cast<int>(per_pack) <= last; q += t.size()) {
      pack<T> const v = pack_of(s, row + q);
      for (int k = 0; k < static_cast<int>(per_pack); ++k)
        if (q * static_cast<int>(per_pack) + k <= last)
          total += expf(scale * (v.at[k] - most));
    }
    float const share = 1 / t.sum(total);
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> v = pack_of(s, row + q);
      for (int k = 0; k < static_cast<int>(per_pack); ++k)
        v.at[k] = q * static_cast<int>(per_pack) + k <= last ? expf(scale * (v.at[k] - most)) * share : 0.f;
      pack_of(s, row + q) = v;
    }
  }
};
template <class T>
struct causal_softmax_backward {  // d: by the probabilities p, then by the scores
  T* d;
  T const* p;
  float scale;
  int first, rows, packs;
  WEIR_HOST_DEVICE void operator()(std::size_t r, row_team t) const {
    int const last = first + static_cast<int>(r % static_cast<std::size_t>(rows));
    std::size_t const row = r * static_cast<std::size_t>(packs);
    float product = 0;
    for (int q = t.lane(); q * static_cast<int>(per_pack) <= last; q += t.size()) {
      pack<T> const a = pack_of(p, row + q), b = pack_of(d, row + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        product += a.at[k] * b.at[k];  // p is 0 past the last
    }
    product = t.sum(product);
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> const a = pack_of(p, row + q);
      pack<T> b = pack_of(d, row + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        b.at[k] = a.at[k] * (b.at[k] - product) * scale;
      pack_of(d, row + q) = b;
    }
  }
};

// Row: loss = -log softmax(logits)[target]; logits: share * their gradient.
template <class T>
struct cross_entropy {
  T* logits;
  float* losses;
  std::int32_t const* targets;
  float share;
  int packs;
  WEIR_HOST_DEVICE void operator()(std::size_t r, row_team t) const {
    std::size_t const row = r * static_cast<std::size_t>(packs);
    int const target = targets[r];
    float most = -INFINITY, total = 0, of_target = 0;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> const v = pack_of(logits, row + q);
      for (std::size_t k = 0; k < per_pack; ++k)
        most = fmaxf(most, v.at[k]);
    }
    most = t.max(most);
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> const v = pack_of(logits, row + q);
      for (int k = 0; k < static_cast<int>(per_pack); ++k) {
        total += expf(v.at[k] - most);
        if (q * static_cast<int>(per_pack) + k == target)
          of_target = v.at[k];
      }
    }
    total = t.sum(total);
    of_target = t.sum(of_target);
    if (t.lane() == 0)
      losses[r] = logf(total) + most - of_target;
    for (int q = t.lane(); q < packs; q += t.size()) {
      pack<T> v = pack_of(logits, row + q);
      for (int k = 0; k < static_cast<int>(per_pack); ++k)
        v.at[k] = share * (expf(v.at[k] - most) / total - (q * static_cast<int>(per_pack) + k == target ? 1.f : 0.f));
      pack_of(logits, row + q) = v;
    }
  }
};

}  // namespace weir::tool::layers
