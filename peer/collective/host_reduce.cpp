// Reductions in blocks that fit the L1 cache: load, combine, store.
// Threads: any, on ranges that do not overlap.
#include "peer/collective/host_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

namespace weir::peer {
namespace {

struct half { std::uint16_t bits; };
struct brain { std::uint16_t bits; };

float widen(half h) noexcept {
  std::uint32_t const sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16, exponent = (h.bits >> 10) & 0x1fu,
                      fraction = h.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float const small = std::ldexp(static_cast<float>(fraction), -24);
  return sign ? -small : small;
}
float widen(brain b) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(b.bits) << 16); }

// Rounds to nearest, ties to even.
half narrow(float value, half) noexcept {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000u,
                      rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (rest >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (rest < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    float const units = std::nearbyint(std::ldexp(std::bit_cast<float>(rest), 24));
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(units))};
  }
  std::uint32_t const rounded = rest + 0xfffu + (rest >> 13 & 1u);
  return {static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13)};
}
brain narrow(float value, brain) noexcept {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

// Type of the sums over T.
template <class T>
using wide = std::conditional_t<std::is_integral_v<T>, std::int64_t,
                                std::conditional_t<std::is_same_v<T, double>, double, float>>;

template <class T>
wide<T> load(T value) noexcept {
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, brain>) {
    return widen(value);
  } else {
    return static_cast<wide<T>>(value);
  }
}
template <class T>
T store(wide<T> value) noexcept {
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, brain>) {
    return narrow(value, T{});
  } else {
    return static_cast<T>(value);  // integers wrap
  }
}

template <class W>
W add(W a, W b) noexcept {
  if constexpr (std::is_integral_v<W>) {
    return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T, class Combine>
void by_blocks(std::span<void const* const> in, std::span<void* const> out, std::int64_t begin, std::int64_t end,
               bool divide, Combine combine) {
  constexpr std::int64_t block = 1024;
  std::array<wide<T>, block> sum;
  auto const ranks = static_cast<wide<T>>(in.size());
  for (std::int64_t at = begin; at < end; at += block) {
    std::size_t const n = static_cast<std::size_t>(std::min(block, end - at));
    T const* const first = static_cast<T const*>(in[0]) + at;
    for (std::size_t i = 0; i < n; ++i) sum[i] = load(first[i]);
    for (void const* const other : in.subspan(1)) {
      T const* const from = static_cast<T const*>(other) + at;
      for (std::size_t i = 0; i < n; ++i) sum[i] = combine(sum[i], load(from[i]));
    }
    if (divide) {
      for (std::size_t i = 0; i < n; ++i) sum[i] = sum[i] / ranks;
    }
    for (void* const target : out) {
      T* const to = static_cast<T*>(target) + at;
      for (std::size_t i = 0; i < n; ++i) to[i] = store<T>(sum[i]);
    }
  }
}

template <class T>
void reduce_as(reduce_op how, std::span<void const* const> in, std::span<void* const> out, std::int64_t begin,
               std::int64_t end) {
  using W = wide<T>;
  switch (how) {
    case reduce_op::sum: return by_blocks<T>(in, out, begin, end, false, add<W>);
    case reduce_op::average: return by_blocks<T>(in, out, begin, end, true, add<W>);
    case reduce_op::min: return by_blocks<T>(in, out, begin, end, false, [](W a, W b) { return b < a ? b : a; });
    case reduce_op::max: return by_blocks<T>(in, out, begin, end, false, [](W a, W b) { return a < b ? b : a; });
  }
}

}  // namespace

void reduce(dtype type, reduce_op how, std::span<void const* const> in, std::span<void* const> out, std::int64_t begin,
            std::int64_t end) {
  switch (type) {
    case float32: return reduce_as<float>(how, in, out, begin, end);
    case float64: return reduce_as<double>(how, in, out, begin, end);
    case float16: return reduce_as<half>(how, in, out, begin, end);
    case bfloat16: return reduce_as<brain>(how, in, out, begin, end);
    case int8: return reduce_as<std::int8_t>(how, in, out, begin, end);
    case uint8: return reduce_as<std::uint8_t>(how, in, out, begin, end);
    case int32: return reduce_as<std::int32_t>(how, in, out, begin, end);
    case int64: return reduce_as<std::int64_t>(how, in, out, begin, end);
    case int16:
    case boolean: return;
  }
}

}  // namespace weir::peer
