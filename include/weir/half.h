// weir/half.h: element types of float16 and bfloat16 tensors, for kernels. Computed as float.
// Threads: any. Rounds to nearest, ties to even; NaN stays NaN, too large is infinity (IEEE 754-2019, 4.3.1).
#pragma once
#include <bit>
#include <cstdint>

#include "weir/parallel_for.h"

namespace weir {
namespace detail {

WEIR_HOST_DEVICE inline float float_of_bfloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

WEIR_HOST_DEVICE inline std::uint16_t bfloat16_of_float(float f) noexcept {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint16_t rounded;  // by one instruction: kernels that move few bytes an element are bound by arithmetic
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(f));
  return rounded;
#else
  auto const bits = std::bit_cast<std::uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

WEIR_HOST_DEVICE inline float float_of_float16(std::uint16_t bits) noexcept {
  std::uint32_t const sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu,
                      fraction = bits & 0x3ffu;
  if (exponent == 0x1f)
    return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float const tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

WEIR_HOST_DEVICE inline std::uint16_t float16_of_float(float f) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(f);
  auto const sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  std::uint32_t const size = bits & 0x7fffffffu;
  if (size > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u);  // NaN
  if (size >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more: infinity
  if (size >= 0x38800000u)
    return static_cast<std::uint16_t>(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
  // Below 2^-14 the step is 2^-24: adding 0.5 leaves the rounded steps in the last bits of the sum.
  return static_cast<std::uint16_t>(sign |
                                    (std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u));
}

}  // namespace detail

struct float16_t {
  std::uint16_t bits;
  float16_t() = default;
  WEIR_HOST_DEVICE float16_t(float f) noexcept : bits(detail::float16_of_float(f)) {}
  WEIR_HOST_DEVICE operator float() const noexcept { return detail::float_of_float16(bits); }
};
struct bfloat16_t {
  std::uint16_t bits;
  bfloat16_t() = default;
  WEIR_HOST_DEVICE bfloat16_t(float f) noexcept : bits(detail::bfloat16_of_float(f)) {}
  WEIR_HOST_DEVICE operator float() const noexcept { return detail::float_of_bfloat16(bits); }
};

}  // namespace weir
