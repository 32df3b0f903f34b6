// Elements of the small float dtypes round to the nearest representable number, ties to even.
// Threads: one.
#include "tensor/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace weir;

namespace {

double meaning(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  int const bias = (1 << (exponent_bits - 1)) - 1, exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  int const fraction = bits & ((1 << fraction_bits) - 1);
  double const sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0)
    return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// The nearer of two neighbours in bit order.
std::uint16_t nearest(float f, int exponent_bits, int fraction_bits) {
  auto const infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  auto const sign = static_cast<std::uint16_t>(std::signbit(f) ? 0x8000 : 0);
  double const x = std::fabs(static_cast<double>(f));
  std::uint16_t below = 0;
  for (int bit = 14; bit >= 0; --bit) {
    auto const next = static_cast<std::uint16_t>(below | 1 << bit);
    if (next < infinity && meaning(next, exponent_bits, fraction_bits) <= x)
      below = next;
  }
  auto const above = static_cast<std::uint16_t>(below + 1);
  double const low = meaning(below, exponent_bits, fraction_bits);
  double const high = above == infinity
                          ? 2 * low - meaning(static_cast<std::uint16_t>(below - 1), exponent_bits, fraction_bits)
                          : meaning(above, exponent_bits, fraction_bits);
  if (x - low < high - x)
    return static_cast<std::uint16_t>(sign | below);
  if (x - low > high - x)
    return static_cast<std::uint16_t>(sign | above);
  return static_cast<std::uint16_t>(sign | (below & 1 ? above : below));
}

TEST(numbers, every16_bit_float_means_what_its_bits_say) {
  for (int i = 0; i < 65536; ++i) {
    auto const bits = static_cast<std::uint16_t>(i);
    for (bool const brain : {false, true}) {
      double const is = brain ? ops::float_of_bfloat16(bits) : ops::float_of_float16(bits),
                   should = brain ? meaning(bits, 8, 7) : meaning(bits, 5, 10);
      if (std::isnan(should)) {
        ASSERT_TRUE(std::isnan(is)) << bits;
      } else {
        ASSERT_EQ(is, should) << bits;
        ASSERT_EQ(std::signbit(is), std::signbit(should)) << bits;
      }
    }
  }
}

TEST(numbers, floats_round_to_the_nearest_small_float_ties_to_even) {
  std::mt19937 random(1);
  auto const check = [](float f) {
    ASSERT_EQ(ops::float16_of_float(f), nearest(f, 5, 10)) << std::hexfloat << f;
    ASSERT_EQ(ops::bfloat16_of_float(f), nearest(f, 8, 7)) << std::hexfloat << f;
  };
  for (int i = 0; i < 100000; ++i) {
    auto const bits = static_cast<std::uint32_t>(random());
    float f;
    std::memcpy(&f, &bits, 4);
    if (std::isfinite(f))
      check(f);
    // float16's range and its ties
    check(std::ldexp(static_cast<float>(random() % 65536) / 32768.0f, static_cast<int>(random() % 44) - 28));
  }
  for (float f : {0.0f, -0.0f, 65504.0f, 65519.996f, 65520.0f, 65536.0f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f,
                  0x1.ffcp-15f, 0x1.ffep-15f})
    check(f);
}

TEST(numbers, infinity_and_not_a_number_stay) {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ops::float16_of_float(-inf), 0xfc00);
  EXPECT_EQ(ops::bfloat16_of_float(inf), 0x7f80);
  EXPECT_TRUE(std::isnan(ops::float_of_float16(ops::float16_of_float(nan))));
  EXPECT_TRUE(std::isnan(ops::float_of_bfloat16(ops::bfloat16_of_float(nan))));
  float low_bits_only;  // truncation would give an infinity
  std::uint32_t const bits = 0x7f800001u;
  std::memcpy(&low_bits_only, &bits, 4);
  EXPECT_TRUE(std::isnan(ops::float_of_bfloat16(ops::bfloat16_of_float(low_bits_only))));
}

TEST(numbers, what_no_integer_can_hold_is_bounded) {
  EXPECT_EQ(ops::integer_of(std::nan("")), 0);
  EXPECT_EQ(ops::integer_of(1e300), INT64_MAX);
  EXPECT_EQ(ops::integer_of(-1e300), INT64_MIN);
  EXPECT_EQ(ops::integer_of(-2.9), -2);
  std::uint8_t byte = 0;
  ops::store(uint8, &byte, 0, -1.0);
  EXPECT_EQ(byte, 255);
  ops::store(boolean, &byte, 0, 0.25);
  EXPECT_EQ(byte, 1);
}

TEST(numbers, kernels_read_and_write_halves_as_their_own_types) {
  weir::runtime machine{weir::simulated{.devices = 1, .memory = 64_MiB}};
  weir::runtime_guard const in(machine);
  tensor const halves = full({3}, 1.5, {.dtype = float16, .on = cpu}),
               brains = full({3}, 1.5, {.dtype = bfloat16, .on = cpu});
  for (float16_t& h : halves.host<float16_t>())
    h = h * 2 + 1;
  for (bfloat16_t& h : brains.host<bfloat16_t>())
    h = 1.001f;  // rounds to 1, with 8 significant bits
  EXPECT_EQ(halves.to(float32).host<float>()[2], 4);
  EXPECT_EQ(brains.to(float32).host<float>()[2], 1);
  EXPECT_THROW((void)halves.data<bfloat16_t>(), invalid_use);
  EXPECT_EQ(halves.data<std::uint16_t>()[0], 0x4400);
}

}  // namespace
