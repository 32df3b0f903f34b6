// Reductions in blocks that fit the L1 cache: load, combine, store.
// Threads: any, on ranges that do not overlap.
#include "peer/collective/host_reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "weir/half.h"

namespace weir::peer {
namespace {

// Type of the sums over T.
template <class T>
using wide = std::conditional_t<std::is_integral_v<T>, std::int64_t,
                                std::conditional_t<std::is_same_v<T, double>, double, float>>;

template <class W>
W add(W a, W b) noexcept {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return a + b;
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
    for (std::size_t i = 0; i < n; ++i)
      sum[i] = static_cast<wide<T>>(first[i]);
    for (void const* const other : in.subspan(1)) {
      T const* const from = static_cast<T const*>(other) + at;
      for (std::size_t i = 0; i < n; ++i)
        sum[i] = combine(sum[i], static_cast<wide<T>>(from[i]));
    }
    if (divide) {
      for (std::size_t i = 0; i < n; ++i)
        sum[i] = sum[i] / ranks;
    }
    for (void* const target : out) {
      T* const to = static_cast<T*>(target) + at;
      for (std::size_t i = 0; i < n; ++i)
        to[i] = static_cast<T>(sum[i]);  // integers wrap
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
    case float16: return reduce_as<float16_t>(how, in, out, begin, end);
    case bfloat16: return reduce_as<bfloat16_t>(how, in, out, begin, end);
    case int8: return reduce_as<std::int8_t>(how, in, out, begin, end);
    case uint8: return reduce_as<std::uint8_t>(how, in, out, begin, end);
    case int32: return reduce_as<std::int32_t>(how, in, out, begin, end);
    case int64: return reduce_as<std::int64_t>(how, in, out, begin, end);
    case int16:
    case boolean: return;
  }
}

}  // namespace weir::peer
