// The model's kernels, compiled for GPUs and for simulated devices. T is the type of stored activations:
// float or a half type. Arithmetic is in float; results are rounded when they are stored.
// Threads: each writes its own elements.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "mix.h"
#include "weir/half.h"
#include "weir/parallel_for.h"

namespace trainer::kernels {

using std::int32_t;
using std::size_t;

using index = std::uint32_t;  // no activation has 2^32 elements, and 32-bit division is much faster

struct draw_normal {  // normally distributed numbers: a function of seed and place
  float* out;
  std::uint64_t seed, first_place;
  float deviation;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::uint64_t const place = first_place + i;
    float const u = static_cast<float>((mix(seed ^ mix(2 * place)) >> 40) + 1) * 0x1p-24f;
    float const v = static_cast<float>(mix(seed ^ mix(2 * place + 1)) >> 40) * 0x1p-24f;
    out[i] = deviation * sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
  }
};

template <class T>
struct look_up {  // x[r, c, e] = table[inputs[r, c], e]
  T* x;
  float const* table;
  int32_t const* inputs;
  index embedding;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    index const place = static_cast<index>(i) / embedding, e = static_cast<index>(i) % embedding;
    x[i] = table[static_cast<index>(inputs[place]) * embedding + e];
  }
};

struct add_bias {
  float* y;
  float const* bias;
  index columns;
  WEIR_HOST_DEVICE void operator()(size_t i) const { y[i] += bias[static_cast<index>(i) % columns]; }
};

template <class T>
struct add_bias_relu {
  T* y;
  float const* bias;
  index columns;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    float const v = y[i] + bias[static_cast<index>(i) % columns];
    y[i] = v > 0 ? v : 0.f;
  }
};

template <class T>
struct relu_backward {  // sets dh to zero where the activation was zero
  T* dh;
  T const* h;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    if (!(h[i] > 0.f))
      dh[i] = 0.f;
  }
};

struct softmax_loss {  // row r: losses[r] = -log softmax(logits)[target]; logits: scale * their gradient
  float* logits;
  float* losses;
  int32_t const* targets;
  int vocabulary;
  float scale;
  float const* scaling;  // of float16; null: 1
  WEIR_HOST_DEVICE void operator()(size_t r) const {
    float* const row = logits + r * vocabulary;
    float top = row[0];
    for (int j = 1; j < vocabulary; ++j)
      top = row[j] > top ? row[j] : top;
    float const of_target = row[targets[r]];
    float sum = 0;
    for (int j = 0; j < vocabulary; ++j)
      sum += row[j] = expf(row[j] - top);
    losses[r] = logf(sum) + top - of_target;
    float const whole = scaling ? scale * *scaling : scale, factor = whole / sum;
    for (int j = 0; j < vocabulary; ++j)
      row[j] *= factor;
    row[targets[r]] -= whole;
  }
};

template <class T>
struct column_sums {  // out[j] = sum over the rows, in order; `more`: adds to out
  float* out;
  T const* in;
  int rows, columns;
  bool more;
  WEIR_HOST_DEVICE void operator()(size_t j) const {
    float sum = more ? out[j] : 0;
    for (int r = 0; r < rows; ++r)
      sum += in[static_cast<size_t>(r) * columns + j];
    out[j] = sum;
  }
};

template <class T>
struct embedding_gradient {  // sum over the occurrences of character i / embedding, in their order
  float* out;
  T const* dx;
  int32_t const* starts;
  int32_t const* places;
  int embedding;
  bool more;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    size_t const character = i / embedding, e = i % embedding;
    float sum = more ? out[i] : 0;
    for (int32_t k = starts[character]; k < starts[character + 1]; ++k)
      sum += dx[static_cast<size_t>(places[k]) * embedding + e];
    out[i] = sum;
  }
};

}  // namespace trainer::kernels
