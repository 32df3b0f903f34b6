// Reads and writes one element of any dtype, on hosts and devices. Values only.
// Threads: any.
#pragma once
#include <cstdint>

#include "weir/half.h"

namespace weir::ops {

WEIR_HOST_DEVICE constexpr bool is_integer(dtype type) noexcept {
  return type == int8 || type == uint8 || type == int16 || type == int32 || type == int64 || type == boolean;
}

using detail::bfloat16_of_float;
using detail::float16_of_float;
using detail::float_of_bfloat16;
using detail::float_of_float16;

WEIR_HOST_DEVICE inline std::int64_t load_integer(dtype type, void const* p, std::int64_t i) noexcept {
  switch (type) {
    case int8: return static_cast<std::int8_t const*>(p)[i];
    case int16: return static_cast<std::int16_t const*>(p)[i];
    case int32: return static_cast<std::int32_t const*>(p)[i];
    case int64: return static_cast<std::int64_t const*>(p)[i];
    default: return static_cast<std::uint8_t const*>(p)[i];
  }
}

WEIR_HOST_DEVICE inline double load(dtype type, void const* p, std::int64_t i) noexcept {
  switch (type) {
    case float32: return static_cast<float const*>(p)[i];
    case float64: return static_cast<double const*>(p)[i];
    case float16: return float_of_float16(static_cast<std::uint16_t const*>(p)[i]);
    case bfloat16: return float_of_bfloat16(static_cast<std::uint16_t const*>(p)[i]);
    default: return static_cast<double>(load_integer(type, p, i));
  }
}

// Stores the low bits; for boolean, value != 0.
WEIR_HOST_DEVICE inline void store_integer(dtype type, void* p, std::int64_t i, std::int64_t value) noexcept {
  switch (type) {
    case int16: static_cast<std::int16_t*>(p)[i] = static_cast<std::int16_t>(value); break;
    case int32: static_cast<std::int32_t*>(p)[i] = static_cast<std::int32_t>(value); break;
    case int64: static_cast<std::int64_t*>(p)[i] = value; break;
    case boolean: static_cast<std::uint8_t*>(p)[i] = value != 0; break;
    default: static_cast<std::uint8_t*>(p)[i] = static_cast<std::uint8_t>(value); break;
  }
}

// NaN becomes 0. Values outside int64 become its nearest bound; narrower types then take the low bits.
WEIR_HOST_DEVICE inline std::int64_t integer_of(double value) noexcept {
  if (!(value > -0x1p63))
    return value != value ? 0 : INT64_MIN;
  return value >= 0x1p63 ? INT64_MAX : static_cast<std::int64_t>(value);
}

WEIR_HOST_DEVICE inline void store(dtype type, void* p, std::int64_t i, double value) noexcept {
  switch (type) {
    case float32: static_cast<float*>(p)[i] = static_cast<float>(value); break;
    case float64: static_cast<double*>(p)[i] = value; break;
    case float16: static_cast<std::uint16_t*>(p)[i] = float16_of_float(static_cast<float>(value)); break;
    case bfloat16: static_cast<std::uint16_t*>(p)[i] = bfloat16_of_float(static_cast<float>(value)); break;
    case boolean: static_cast<std::uint8_t*>(p)[i] = value != 0; break;
    default: store_integer(type, p, i, integer_of(value)); break;
  }
}

}  // namespace weir::ops
