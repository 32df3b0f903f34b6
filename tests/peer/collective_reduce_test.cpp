// The arithmetic of collectives on a simulated machine, element by element, and the state after a refused
// one.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "peer/collective/group.h"
#include "peer/collective/host_reduce.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "weir/half.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

template <class T>
std::vector<T> reduced(dtype type, reduce_op how, std::vector<std::vector<T>> const& in, std::int64_t begin,
                       std::int64_t end) {
  std::vector<T> out(in[0].size(), T{});
  std::vector<void const*> from;
  for (auto const& v : in)
    from.push_back(v.data());
  void* const to = out.data();
  peer::reduce(type, how, from, {&to, 1}, begin, end);
  return out;
}
template <class T>
T one(dtype type, reduce_op how, std::vector<T> const& each) {
  std::vector<std::vector<T>> in;
  for (T v : each)
    in.push_back({v});
  return reduced(type, how, in, 0, 1)[0];
}

float value_of_half(std::uint16_t h) {
  int const exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
  float const size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? std::ldexp(1024.f + static_cast<float>(fraction), exponent - 25)
                                    : std::ldexp(static_cast<float>(fraction), -24);
  return h & 0x8000 ? -size : size;
}
// Returns: the nearest half, by a search over all of them; on a tie the even one.
std::uint16_t nearest_half(float f) {
  std::uint16_t best = 0;
  double const a = std::abs(static_cast<double>(f));
  for (std::uint16_t h = 0; h < 0x7c00; ++h) {
    double const here = std::abs(a - value_of_half(h)), there = std::abs(a - value_of_half(best));
    if (here < there || (here == there && h % 2 == 0))
      best = h;
  }
  if (a >= 65520)
    best = 0x7c00;
  return static_cast<std::uint16_t>(best | (std::signbit(f) ? 0x8000 : 0));
}

TEST(reduce, every_half_survives_alone) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    auto const in = static_cast<std::uint16_t>(h);
    std::uint16_t const out = one<std::uint16_t>(float16, reduce_op::sum, {in});
    if (std::isnan(value_of_half(in))) {
      EXPECT_TRUE(std::isnan(value_of_half(out)));
    } else {
      ASSERT_EQ(out, in);
    }
  }
}

TEST(reduce, sums_of_halves_round_to_the_nearest_half) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    auto const a = static_cast<std::uint16_t>(random()),
               b = static_cast<std::uint16_t>(random() % 4 ? (a ^ (random() & 0x83ff)) : random());
    float const sum = value_of_half(a) + value_of_half(b);
    if (std::isnan(sum) || std::isinf(value_of_half(a)) || std::isinf(value_of_half(b)))
      continue;
    ASSERT_EQ(one<std::uint16_t>(float16, reduce_op::sum, {a, b}) & (sum == 0 ? 0x7fff : 0xffff),
              nearest_half(sum) & (sum == 0 ? 0x7fff : 0xffff))
        << value_of_half(a) << " + " << value_of_half(b);
  }
  EXPECT_EQ(one<std::uint16_t>(float16, reduce_op::sum, {0x7bff, 0x7bff}), 0x7c00) << "overflow is infinity";
}

TEST(reduce, sums_of_bfloat16_round_to_the_nearest_even) {
  auto const brain = [](float f) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16); };
  EXPECT_EQ(one<std::uint16_t>(bfloat16, reduce_op::sum, {brain(1), brain(2)}), brain(3));
  EXPECT_EQ(one<std::uint16_t>(bfloat16, reduce_op::sum, {brain(256), brain(1)}), brain(256));  // tie, to even
  EXPECT_EQ(one<std::uint16_t>(bfloat16, reduce_op::sum, {brain(258), brain(1)}), brain(260));  // tie, to even
  EXPECT_EQ(one<std::uint16_t>(bfloat16, reduce_op::sum, {brain(256), brain(1.5)}), brain(258));
  EXPECT_EQ(one<std::uint16_t>(bfloat16, reduce_op::average, {brain(1), brain(2), brain(6)}), brain(3));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(
      static_cast<std::uint32_t>(one<std::uint16_t>(bfloat16, reduce_op::sum, {0x7fff, 0})) << 16)));
}

// The gradients are half alike. Where each hop of a ring rounds, as NCCL does outside of windows, eight ranks show
// what two cannot. docs/lab/evidence.md has the figures.
TEST(reduce, sums_of_bfloat16_round_once_for_all_ranks) {
  constexpr int count = 20000;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (std::size_t const ranks : {2u, 4u, 8u}) {
    std::vector<std::vector<std::uint16_t>> in(ranks, std::vector<std::uint16_t>(count));
    std::vector<float> exact(count), hops(count);
    for (std::size_t i = 0; i < count; ++i) {
      float const alike = normal(random);
      for (std::size_t r = 0; r < ranks; ++r) {
        float const value = alike + normal(random);
        bfloat16_t const cast = value;
        in[r][i] = cast.bits;
        exact[i] += value;
        hops[i] = bfloat16_t(hops[i] + cast);
      }
    }
    auto const once = reduced(bfloat16, reduce_op::sum, in, 0, count);
    double apart_once = 0, apart_hops = 0, size = 0;
    for (std::size_t i = 0; i < count; ++i) {
      apart_once += std::abs(std::bit_cast<float>(std::uint32_t{once[i]} << 16) - exact[i]);
      apart_hops += std::abs(hops[i] - exact[i]);
      size += std::abs(exact[i]);
    }
    RecordProperty("once_" + std::to_string(ranks), std::to_string(apart_once / size));
    RecordProperty("hops_" + std::to_string(ranks), std::to_string(apart_hops / size));
    EXPECT_LT(apart_once / size, 0.0025) << ranks;
    if (ranks == 2)
      EXPECT_EQ(apart_hops, apart_once);
    else
      EXPECT_GT(apart_hops / apart_once, ranks == 4 ? 1.15 : 1.5) << ranks;
  }
}

TEST(reduce, integers_wrap_and_averages_round_towards_zero) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(one<std::int64_t>(int64, reduce_op::sum, {most, 1}), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(one<std::int32_t>(int32, reduce_op::sum, {2147483647, 2}), -2147483647);
  EXPECT_EQ(one<std::int8_t>(int8, reduce_op::average, {100, 101, 102}), 101) << "sums of narrow numbers have room";
  EXPECT_EQ(one<std::uint8_t>(uint8, reduce_op::sum, {200, 100}), 44);
  EXPECT_EQ(one<std::uint8_t>(uint8, reduce_op::max, {200, 100}), 200);
  EXPECT_EQ(one<std::int32_t>(int32, reduce_op::average, {-3, -4}), -3);
  EXPECT_EQ(one<std::int64_t>(int64, reduce_op::min, {-3, most, -4}), -4);
}

TEST(reduce, only_the_range_is_written_across_block_borders) {
  std::vector<std::vector<double>> in(3, std::vector<double>(5000));
  for (std::size_t r = 0; r < in.size(); ++r) {
    for (std::size_t i = 0; i < 5000; ++i)
      in[r][i] = static_cast<double>(i * (r + 1));
  }
  for (auto [begin, end] : {std::pair{0, 5000}, {1, 1}, {1023, 1025}, {100, 4999}}) {
    auto const out = reduced(float64, reduce_op::sum, in, begin, end);
    for (int i = 0; i < 5000; ++i)
      ASSERT_EQ(out[static_cast<std::size_t>(i)], i >= begin && i < end ? 6. * i : 0.) << begin << " to " << end;
  }
}

// Inputs and outputs end at the end of a mapping: a further byte would fault.
TEST(reduce, nothing_beyond_the_last_element_is_touched) {
  std::size_t const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<std::byte*> pages;
  for (int k = 0; k < 3; ++k) {
    void* const made = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(made, MAP_FAILED);
    ASSERT_EQ(::mprotect(static_cast<std::byte*>(made) + page, page, PROT_NONE), 0);
    pages.push_back(static_cast<std::byte*>(made));
  }
  std::int64_t const count = 3;
  auto const last = [&](std::size_t k) { return reinterpret_cast<std::int32_t*>(pages[k] + page) - count; };
  for (std::size_t k = 0; k < 2; ++k)
    std::fill_n(last(k), count, k + 1);
  void const* const in[] = {last(0), last(1)};
  void* const out[] = {last(2)};
  peer::reduce(int32, reduce_op::average, in, out, 0, count);
  for (int i = 0; i < count; ++i)
    EXPECT_EQ(last(2)[i], 1);
  for (std::byte* const made : pages)
    ::munmap(made, 2 * page);
}

TEST(reduce, the_order_of_the_inputs_is_the_order_of_the_sum) {
  EXPECT_EQ(one<float>(float32, reduce_op::sum, {1e8f, -1e8f, 1.f}), 1.f);
  EXPECT_EQ(one<float>(float32, reduce_op::sum, {1.f, 1e8f, -1e8f}), 0.f);
}

TEST(reduce, all_outputs_hold_equal_bits_also_in_place) {
  std::vector<float> a{1, 2, 3}, b{10, 20, 30};
  void const* const in[] = {a.data(), b.data()};
  void* const out[] = {a.data(), b.data()};
  peer::reduce(float32, reduce_op::average, in, out, 0, 3);
  EXPECT_EQ(a, (std::vector<float>{5.5, 11, 16.5}));
  EXPECT_EQ(a, b);
}

class refused_collective : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_ = communicator::create_all(first_devices(2));
  buffer on(int rank, double value) {
    device_guard const at(rank);
    return to_device(encode(int32, {value}));
  }
};

TEST_F(refused_collective, is_forgotten_after_another_request) {
  buffer const a = on(0, 1), b = on(1, 10);
  simulation::of(machine_).fail_call("enqueue", 1);
  EXPECT_NE(refusal<driver_error>([&] { ranks_[0].all_reduce({a.data(), 1, int32}); }), "");
  for (int rank : {0, 1})
    ranks_[static_cast<std::size_t>(rank)].all_reduce({rank ? b.data() : a.data(), 1, int32}, reduce_op::max);
  for (int rank : {0, 1}) {
    device_guard const at(rank);
    EXPECT_EQ(to_host(rank ? b.data() : a.data(), 4), encode(int32, {10})) << "a maximum, no sum";
  }
}

TEST_F(refused_collective, names_rank_0_when_its_half_was_refused) {
  buffer const a = on(0, 1);
  auto const carrier = peer::carried_by_streams(machine_.get(), {0, 1});
  EXPECT_EQ(carrier->broken(1), "");
  simulation::of(machine_).fail_call("enqueue", 2);
  peer::collective_request const what{peer::collective::all_reduce, int32, reduce_op::sum, 0, 1, a.data(), a.data()};
  EXPECT_THROW(carrier->issue(0, streams::clock_of(current_stream(device(0))), {&what, 1}, source_location::current()),
               driver_error);
  EXPECT_EQ(carrier->broken(1), "a part of rank 0 was refused by gpu:0");
}

TEST_F(refused_collective, names_rank_0_when_its_device_was_lost) {
  buffer const a = on(0, 1), b = on(1, 10);
  auto const gate = machine_.get().machine().hold(0, streams::clock_of(current_stream(device(0))).handle());
  ASSERT_TRUE(gate.ok());
  ranks_[0].all_reduce({a.data(), 1, int32});
  stamp const waits = ranks_[1].all_reduce({b.data(), 1, int32});
  simulation::of(machine_).lose_device(device(0));
  waits.synchronize();
  std::string const text = refusal<driver_error>([&] { ranks_[1].all_reduce({b.data(), 1, int32}); });
  EXPECT_NE(text.find("a part of rank 0 never ran: gpu:0 is lost"), std::string::npos) << text;
}

}  // namespace
