// Kernels on tensors' memory, except products: fill, copy and conversion, elementwise, random numbers, sums.
// Threads: any.
//
// Compiled by nvcc, or by the host compiler without a CUDA toolkit. The kernels are few and general: a switch
// on the dtype in a memory-bound loop is free, and each instance costs compile time for every architecture.
#include "tensor/ops.h"

#include <cmath>

#include "tensor/number.h"

namespace weir::ops {
namespace {

template <class F>
void run(place const& where, std::int64_t n, memory_uses u, F f, source_location at) {
  if (n <= 0)
    return;
  if (where)
    parallel_for(*where, static_cast<size_t>(n), u, f, at);
  else
    on_host(u, at), detail::loop_on_host(static_cast<size_t>(n), f);
}

memory_use used(operand const& o, access_mode how) noexcept {
  std::int64_t last = 0;
  for (int i = 0; i < o.extents.rank(); ++i)
    last += (o.extents[i] - 1) * o.by[i];
  return {o.data, how, static_cast<size_t>(last + 1) * size_of(o.type)};
}

// Iterates over N operands of equal extents; dimensions that are contiguous in all are merged.
template <int N>
struct walk {
  std::int64_t n = 1;
  int rank = 0;
  std::int64_t extents[shape::max_rank];
  std::int64_t by[N][shape::max_rank];

  explicit walk(operand const* const (&all)[N]) {
    shape const& s = all[0]->extents;
    for (int d = 0; d < s.rank(); ++d) {
      n *= s[d];
      if (s[d] == 1)
        continue;
      bool joins = rank > 0;
      for (int k = 0; k < N && joins; ++k)
        joins = by[k][rank - 1] == all[k]->by[d] * s[d];
      if (!joins)
        extents[rank++] = 1;
      extents[rank - 1] *= s[d];
      for (int k = 0; k < N; ++k)
        by[k][rank - 1] = all[k]->by[d];
    }
    if (rank == 0) {
      extents[rank++] = 1;
      for (int k = 0; k < N; ++k)
        by[k][0] = 1;
    }
  }
  bool dense() const {
    bool all = rank == 1;
    for (int k = 0; k < N; ++k)
      all = all && by[k][0] == 1;
    return all;
  }
  WEIR_HOST_DEVICE void offsets(std::int64_t i, std::int64_t (&at)[N]) const {
    for (int k = 0; k < N; ++k)
      at[k] = 0;
    for (int d = rank - 1; d > 0; --d) {
      std::int64_t const rest = i / extents[d], here = i - rest * extents[d];
      for (int k = 0; k < N; ++k)
        at[k] += here * by[k][d];
      i = rest;
    }
    for (int k = 0; k < N; ++k)
      at[k] += i * by[k][0];
  }
};

// fill ------------------------------------------------------------------------------------------------------
template <class T>
struct fill_dense {
  T* out;
  T value;
  WEIR_HOST_DEVICE void operator()(size_t i) const { out[i] = value; }
};
struct fill_strided {
  walk<1> over;
  void* out;
  dtype type;
  double value;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::int64_t at[1];
    over.offsets(static_cast<std::int64_t>(i), at);
    store(type, out, at[0], value);
  }
};
template <class T>
void fill_with(place const& where, operand const& out, std::int64_t n, void const* bits, source_location at) {
  run(where, n, {used(out, access_mode::write)}, fill_dense<T>{static_cast<T*>(out.data), *static_cast<T const*>(bits)},
      at);
}

// copy ------------------------------------------------------------------------------------------------------
template <class T>
struct copy_strided {
  walk<2> over;
  T* out;
  T const* in;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::int64_t at[2];
    over.offsets(static_cast<std::int64_t>(i), at);
    out[at[0]] = in[at[1]];
  }
};
template <class T>
void copy_as(place const& where, walk<2> const& over, operand const& out, operand const& in, source_location at) {
  run(where, over.n, {used(out, access_mode::write), used(in, access_mode::read)},
      copy_strided<T>{over, static_cast<T*>(out.data), static_cast<T const*>(in.data)}, at);
}
struct convert {
  walk<2> over;
  void* out;
  void const* in;
  dtype to, from;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::int64_t at[2];
    over.offsets(static_cast<std::int64_t>(i), at);
    if (is_integer(to) && is_integer(from))
      store_integer(to, out, at[0], load_integer(from, in, at[1]));
    else
      store(to, out, at[0], load(from, in, at[1]));
  }
};

struct counting {
  void* out;
  dtype type;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    if (is_integer(type))
      store_integer(type, out, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i));
    else
      store(type, out, static_cast<std::int64_t>(i), static_cast<double>(i));
  }
};

// No fused multiply-add, so that a GPU and the simulated machine give the same bits.
#if defined(__CUDA_ARCH__)
WEIR_HOST_DEVICE inline float plus_scaled(float a, float s, float b) {
  return __fadd_rn(a, __fmul_rn(s, b));
}
#else
WEIR_HOST_DEVICE inline float plus_scaled(float a, float s, float b) {
  return a + s * b;
}
#endif

// random: Philox 4x32 with 10 rounds, a counter and a key in, four numbers out ------------------------------
struct drawing {
  float* out;
  size_t n;
  std::uint64_t seed, first;
  draw how;
  float mean, deviation;
  WEIR_HOST_DEVICE void operator()(size_t group) const {
    std::uint64_t const counter = first + group;
    std::uint32_t c[4] = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      std::uint64_t const a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
      std::uint32_t const next0 = static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0,
                          next2 = static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1;
      c[1] = static_cast<std::uint32_t>(b);
      c[3] = static_cast<std::uint32_t>(a);
      c[0] = next0;
      c[2] = next2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    float value[4];
    if (how == draw::uniform) {
      for (int j = 0; j < 4; ++j)
        value[j] = static_cast<float>(c[j] >> 8) * 0x1p-24f;
    } else {
      for (int j = 0; j < 4; j += 2) {
        float const radius = ::sqrtf(-2.0f * ::logf((static_cast<float>(c[j] >> 8) + 1.0f) * 0x1p-24f));
        float const angle = 6.2831853f * (static_cast<float>(c[j + 1] >> 8) * 0x1p-24f);
        value[j] = plus_scaled(mean, deviation, radius * ::cosf(angle));
        value[j + 1] = plus_scaled(mean, deviation, radius * ::sinf(angle));
      }
    }
    for (size_t j = 0; j < 4 && 4 * group + j < n; ++j)
      out[4 * group + j] = value[j];
  }
};

// element by element ----------------------------------------------------------------------------------------
template <elementwise Op>
WEIR_HOST_DEVICE inline float result(float a, float b, float s) {
  if constexpr (Op == elementwise::add)
    return plus_scaled(a, s, b);
  else if constexpr (Op == elementwise::mul)
    return a * b;
  else if constexpr (Op == elementwise::scale)
    return a * s;
  else if constexpr (Op == elementwise::sine)
    return ::sinf(a);
  else
    return a < 0 ? 0 : a;
}
template <elementwise Op>
struct apply_dense {
  float* out;
  float const* a;
  float const* b;
  float s;
  WEIR_HOST_DEVICE void operator()(size_t i) const { out[i] = result<Op>(a[i], b[i], s); }
};
struct apply_strided {
  walk<3> over;
  float* out;
  float const* a;
  float const* b;
  float s;
  elementwise op;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::int64_t at[3];
    over.offsets(static_cast<std::int64_t>(i), at);
    float const x = a[at[1]], y = b[at[2]];
    float& z = out[at[0]];
    switch (op) {
      case elementwise::add: z = result<elementwise::add>(x, y, s); break;
      case elementwise::mul: z = result<elementwise::mul>(x, y, s); break;
      case elementwise::scale: z = result<elementwise::scale>(x, y, s); break;
      case elementwise::relu: z = result<elementwise::relu>(x, y, s); break;
      case elementwise::sine: z = result<elementwise::sine>(x, y, s); break;
    }
  }
};

// sum: tiles of 32 lanes x 128 steps. Lane l of a tile adds elements l, l + 32, l + 64, … in this order. GPU
// threads then read adjacent elements, a host vectorizes over the lanes, and both round alike.
constexpr std::int64_t lanes = 32, steps = 128, tile = lanes * steps, few = 256;
std::int64_t partials_of(std::int64_t n) noexcept {
  return (n + tile - 1) / tile * lanes;
}

template <class T>
struct sum_lane {
  double* out;
  T const* in;
  std::int64_t n;
  WEIR_HOST_DEVICE void operator()(size_t i) const {
    std::int64_t const first = static_cast<std::int64_t>(i) / lanes * tile + static_cast<std::int64_t>(i) % lanes;
    double total = 0;
    if (first - first % lanes + tile <= n) {
#if defined(__CUDA_ARCH__)
#pragma unroll 16
#endif
      for (int k = 0; k < steps; ++k)
        total += static_cast<double>(in[first + k * lanes]);
    } else {
      for (std::int64_t k = first; k < n; k += lanes)
        total += static_cast<double>(in[k]);
    }
    out[i] = total;
  }
};
template <class T>
struct sum_tiles {  // the same on a host
  sum_lane<T> all;
  void operator()() const {
    std::int64_t const tiles = partials_of(all.n) / lanes;
    for (std::int64_t t = 0; t < tiles; ++t) {
      if ((t + 1) * tile > all.n) {
        for (std::int64_t l = 0; l < lanes; ++l)
          all(static_cast<size_t>(t * lanes + l));
        continue;
      }
      double total[lanes] = {};
      T const* const in = all.in + t * tile;
      for (std::int64_t k = 0; k < steps; ++k)
        for (std::int64_t l = 0; l < lanes; ++l)
          total[l] += static_cast<double>(in[k * lanes + l]);
      for (std::int64_t l = 0; l < lanes; ++l)
        all.out[t * lanes + l] = total[l];
    }
  }
};
struct sum_last {
  void* out;
  void const* in;
  dtype to, from;
  std::int64_t n;
  double divisor;
  WEIR_HOST_DEVICE void operator()(size_t) const {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i)
      total += load(from, in, i);
    store(to, out, 0, total / divisor);
  }
};
template <class T>
void sum_level(place const& where, double* out, T const* in, std::int64_t n, source_location at) {
  sum_lane<T> const all{out, in, n};
  std::int64_t const threads = partials_of(n);
  memory_use const both[] = {reads(in, static_cast<size_t>(n) * sizeof(T)),
                             writes(out, static_cast<size_t>(threads) * sizeof(double))};
  if (!where)
    return on_host(both, at), sum_tiles<T>{all}();
  launch(
      *where, both,
      [&](CUstream_st* native) { detail::loop_on_gpu(*where, native, static_cast<size_t>(threads), all, at); },
      sum_tiles<T>{all}, at);
}

}  // namespace

void fill(place const& where, operand const& out, double value, source_location at) {
  walk<1> const over({&out});
  if (over.n == 0)
    return;
  if (!over.dense())
    return run(where, over.n, {used(out, access_mode::write)}, fill_strided{over, out.data, out.type, value}, at);
  std::uint64_t bits = 0;
  store(out.type, &bits, 0, value);
  switch (size_of(out.type)) {
    case 1: return fill_with<std::uint8_t>(where, out, over.n, &bits, at);
    case 2: return fill_with<std::uint16_t>(where, out, over.n, &bits, at);
    case 4: return fill_with<std::uint32_t>(where, out, over.n, &bits, at);
    default: return fill_with<std::uint64_t>(where, out, over.n, &bits, at);
  }
}

void copy(place const& where, operand const& out, operand const& in, source_location at) {
  walk<2> const over({&out, &in});
  if (over.n == 0)
    return;
  if (out.type != in.type)
    return run(where, over.n, {used(out, access_mode::write), used(in, access_mode::read)},
               convert{over, out.data, in.data, out.type, in.type}, at);
  switch (size_of(out.type)) {
    case 1: return copy_as<std::uint8_t>(where, over, out, in, at);
    case 2: return copy_as<std::uint16_t>(where, over, out, in, at);
    case 4: return copy_as<std::uint32_t>(where, over, out, in, at);
    default: return copy_as<std::uint64_t>(where, over, out, in, at);
  }
}

void count_up(place const& where, operand const& out, source_location at) {
  walk<1> const over({&out});
  if (over.n)
    run(where, over.n, {used(out, access_mode::write)}, counting{out.data, out.type}, at);
}

void random(place const& where, operand const& out, distribution numbers, std::uint64_t seed, std::uint64_t first_group,
            source_location at) {
  walk<1> const over({&out});
  if (over.n)
    run(where, groups_of(over.n), {used(out, access_mode::write)},
        drawing{static_cast<float*>(out.data), static_cast<size_t>(over.n), seed, first_group, numbers.how,
                static_cast<float>(numbers.mean), static_cast<float>(numbers.deviation)},
        at);
}

void apply(place const& where, elementwise op, operand const& out, operand const& a, operand const& b, double scalar,
           source_location at) {
  walk<3> const over({&out, &a, &b});
  if (over.n == 0)
    return;
  auto* const z = static_cast<float*>(out.data);
  auto const* const x = static_cast<float const*>(a.data);
  auto const* const y = static_cast<float const*>(b.data);
  auto const s = static_cast<float>(scalar);
  memory_use const all[] = {used(out, access_mode::write), used(a, access_mode::read), used(b, access_mode::read)};
  memory_uses const u(all);
  if (!over.dense())
    return run(where, over.n, u, apply_strided{over, z, x, y, s, op}, at);
  switch (op) {
    case elementwise::add: return run(where, over.n, u, apply_dense<elementwise::add>{z, x, y, s}, at);
    case elementwise::mul: return run(where, over.n, u, apply_dense<elementwise::mul>{z, x, y, s}, at);
    case elementwise::scale: return run(where, over.n, u, apply_dense<elementwise::scale>{z, x, y, s}, at);
    case elementwise::relu: return run(where, over.n, u, apply_dense<elementwise::relu>{z, x, y, s}, at);
    case elementwise::sine: return run(where, over.n, u, apply_dense<elementwise::sine>{z, x, y, s}, at);
  }
}

std::int64_t sum_workspace(std::int64_t n) noexcept {
  if (n <= few)
    return 0;
  std::int64_t const first = partials_of(n);
  return first <= few ? first : first + partials_of(first);
}

void sum(place const& where, operand const& out, operand const& in, void* workspace, double divisor,
         source_location at) {
  std::int64_t n = 1;
  for (std::int64_t const e : in.extents)
    n *= e;
  void const* from = in.data;
  dtype type = in.type;
  double* to = static_cast<double*>(workspace);
  double* other = to + (n > few ? partials_of(n) : 0);
  while (n > few) {  // each level reuses the space of the level before the last
    if (type == float32)
      sum_level(where, to, static_cast<float const*>(from), n, at);
    else
      sum_level(where, to, static_cast<double const*>(from), n, at);
    from = to;
    type = float64;
    n = partials_of(n);
    std::swap(to, other);
  }
  memory_use const all[] = {{out.data, access_mode::write, size_of(out.type)},
                            {n ? from : nullptr, access_mode::read, static_cast<size_t>(n) * size_of(type)}};
  run(where, 1, all, sum_last{out.data, from, out.type, type, n, divisor}, at);
}

}  // namespace weir::ops
