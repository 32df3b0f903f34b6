// What the models' kernels share: eight elements an index, rows, numbers drawn by their place.
// Threads: each writes its own elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "weir/half.h"
#include "weir/parallel_rows.h"
#include "weir/tensor.h"

namespace weir::tool {

using index = std::uint32_t;  // no tensor here has 2^32 elements, and 32-bit division is much faster

WEIR_HOST_DEVICE inline std::uint64_t mix(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

constexpr std::size_t per_pack = 8;
template <class T>
struct alignas(16) pack {  // a GPU moves 16 bytes at once
  T at[per_pack];
};
template <class T>
WEIR_HOST_DEVICE inline pack<T>& pack_of(T* p, std::size_t i) {
  return reinterpret_cast<pack<T>*>(p)[i];
}
template <class T>
WEIR_HOST_DEVICE inline pack<T> const& pack_of(T const* p, std::size_t i) {
  return reinterpret_cast<pack<T> const*>(p)[i];
}

template <class F>
void run(std::int64_t n, std::initializer_list<memory_use> uses, F f, source_location at = source_location::current()) {
  parallel_for(current_stream(), static_cast<std::size_t>(n), uses, f, at);
}
template <class T>
void run_packs(tensor const& of, std::initializer_list<memory_use> uses, T f,
               source_location at = source_location::current()) {
  run(of.numel() / static_cast<std::int64_t>(per_pack), uses, f, at);
}

// Runs f(row, team) for each row.
template <class F>
void run_rows(std::int64_t rows, std::initializer_list<memory_use> uses, F f,
              source_location at = source_location::current()) {
  parallel_for_rows(current_stream(), static_cast<std::size_t>(rows), uses, f, at);
}

struct draw {  // uniform in [-scale, scale)
  float* out;
  std::uint64_t seed;
  float scale;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    out[i] = (static_cast<float>(mix(seed ^ mix(i)) >> 40) * 0x1p-23f - 1.f) * scale;
  }
};

template <class T>
struct momentum_step {
  float* value;
  float* velocity;
  float const* gradient;
  T* copy;  // of the values; null: there is none
  float rate;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    constexpr float momentum = 0.9f;
    pack<float> v = pack_of(velocity, i), x = pack_of(value, i);
    pack<float> const g = pack_of(gradient, i);
    for (std::size_t k = 0; k < per_pack; ++k) {
      v.at[k] = momentum * v.at[k] + g.at[k];
      x.at[k] -= rate * v.at[k];
    }
    pack_of(velocity, i) = v;
    pack_of(value, i) = x;
    if (!copy)
      return;
    pack<T> rounded;
    for (std::size_t k = 0; k < per_pack; ++k)
      rounded.at[k] = x.at[k];
    pack_of(copy, i) = rounded;
  }
};

}  // namespace weir::tool
