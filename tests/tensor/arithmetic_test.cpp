// Arithmetic on tensors of any layout and place, against loops over the model's positions.
// Threads: one.
#include <cmath>

#include "tests/tensor/model.h"

using namespace weir;
using namespace weir::testing;

namespace {

class arithmetic : public on_devices {
 protected:
  struct sample {
    modelled v;
    tensor base;
    std::vector<float> values;  // of the whole storage
    float& operator[](size_t i) { return values[static_cast<size_t>(v.m.at[i])]; }
    size_t size() const { return v.m.at.size(); }
  };
  // A view of this shape, perhaps in a larger storage and in another order.
  sample random_sample(extents const& s, memory_of_tensor place) {
    bool const turned = s.size() > 1 && random.between(0, 1);
    extents order = s;
    if (turned)
      std::swap(order.front(), order.back());
    std::int64_t const extent = order[0];
    order[0] += random.between(0, 2);
    model_view const all = model_view::whole(order);
    sample x{{}, {}, std::vector<float>(all.at.size())};
    for (float& v : x.values)
      v = random.number();
    x.base = empty(shape_of(order), options_at(place));
    if (!x.values.empty())
      x.base.copy_(tensor::from_blob(x.values.data(), shape_of(order), float32, cpu));
    x.v = modelled{x.base, all}.sliced(0, order[0] - extent, order[0]);
    if (turned)
      x.v = x.v.transposed(0, s.size() - 1);
    return x;
  }
  static void expect(std::vector<float> const& should, tensor const& base) {
    tensor const is = base.contiguous().cpu();
    ASSERT_EQ(is.numel(), static_cast<std::int64_t>(should.size()));
    for (size_t i = 0; i < should.size(); ++i)
      ASSERT_EQ(is.host<float>()[i], should[i]) << "element " << i;
  }
};

TEST_F(arithmetic, in_place_on_views_changes_only_them) {
  for (int round = 0; round < 150; ++round) {
    extents const s = random_shape(random);
    auto const place = random.one_of(places);
    sample a = random_sample(s, place), b = random_sample(s, place);
    for (int step = 0; step < 4; ++step) {
      switch (random.between(0, 4)) {
        case 0:
          a.v.t.add_(b.v.t, 0.5);
          for (size_t i = 0; i < a.size(); ++i)
            a[i] += 0.5f * b[i];
          break;
        case 1:
          a.v.t.mul_(b.v.t);
          for (size_t i = 0; i < a.size(); ++i)
            a[i] *= b[i];
          break;
        case 2:
          a.v.t.mul_(-1.5);
          for (size_t i = 0; i < a.size(); ++i)
            a[i] *= -1.5f;
          break;
        case 3:
          a.v.t.relu_();
          for (size_t i = 0; i < a.size(); ++i)
            a[i] = a[i] < 0 ? 0 : a[i];
          break;
        default:
          a.v.t.fill_(0.25);
          for (size_t i = 0; i < a.size(); ++i)
            a[i] = 0.25f;
      }
    }
    expect(a.values, a.base);
    expect(b.values, b.base);
  }
}

TEST_F(arithmetic, new_tensors_hold_the_result) {
  for (int round = 0; round < 60; ++round) {
    extents const s = random_shape(random);
    auto const place = random.one_of(places);
    sample a = random_sample(s, place), b = random_sample(s, place);
    std::vector<float> plus, times, cut;
    for (size_t i = 0; i < a.size(); ++i)
      plus.push_back(a[i] + b[i]), times.push_back(a[i] * b[i]), cut.push_back(a[i] < 0 ? 0 : a[i]);
    expect(plus, add(a.v.t, b.v.t));
    expect(times, mul(a.v.t, b.v.t));
    expect(cut, relu(a.v.t));
    expect(a.values, a.base);
    expect(b.values, b.base);
  }
}

TEST_F(arithmetic, relu_keeps_not_a_number) {
  EXPECT_TRUE(std::isnan(relu(tensor_of({std::nanf("")}))[0].item<float>()));
  EXPECT_EQ(relu(tensor_of({-INFINITY}))[0].item<float>(), 0);
}

TEST_F(arithmetic, every_dtype_is_filled_and_counted) {
  for (auto const& place : places) {
    for (dtype const type : {float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64}) {
      EXPECT_EQ(full({33}, 7, options_at(place, type))[32].item<int>(), 7) << name_of(type);
      EXPECT_EQ(arange(100, options_at(place, type))[99].item<int>(), 99) << name_of(type);
      tensor const t = zeros({5, 4}, options_at(place, type));
      t.t()[2].fill_(3);
      EXPECT_EQ(sum(t.to(float32)).item<float>(), 15) << name_of(type);
    }
    EXPECT_EQ(sum(full({10}, 5, options_at(place, boolean)).to(float32)).item<float>(), 10);
  }
}

TEST_F(arithmetic, sums_of_any_length_are_those_of_exact_arithmetic) {
  for (std::int64_t const n :
       {1, 2, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097, 8192, 40000, 131072, 131073, 300001}) {
    for (auto const& place : places) {
      tensor const t = arange(n, options_at(place));
      double const should = static_cast<double>(n) * static_cast<double>(n - 1) / 2;
      EXPECT_EQ(sum(t).item<float>(), static_cast<float>(should)) << n;
      EXPECT_EQ(mean(t.to(float64)).item<double>(), should / static_cast<double>(n)) << n;
    }
  }
}

TEST_F(arithmetic, sums_of_many_small_numbers_lose_nothing) {
  std::int64_t const n = 20'000'000;  // a single float accumulator would stop at 2^24
  EXPECT_EQ(sum(ones({n})).item<float>(), static_cast<float>(n));
  EXPECT_NEAR(mean(full({n}, 0.1)).item<float>(), 0.1f, 1e-8);
}

TEST_F(arithmetic, a_sum_has_equal_bits_on_every_device) {
  tensor const t = rand({1'000'003}, {.on = 0});
  float const first = sum(t).item<float>();
  EXPECT_EQ(sum(t).item<float>(), first);
  EXPECT_EQ(sum(t.to(second)).item<float>(), first);
  EXPECT_EQ(sum(t.cpu()).item<float>(), first);
  tensor const apart = empty({1'000'003, 2});
  apart.t()[1].copy_(t);
  EXPECT_EQ(sum(apart.t()[1]).item<float>(), first);
}

TEST_F(arithmetic, random_numbers_follow_from_the_seed) {
  manual_seed(7);
  tensor const a = rand({1001}, {.on = 0}), b = randn({1001}, {.on = 0});
  auto const same = [](tensor const& x, tensor const& y) {
    tensor const p = x.cpu(), q = y.cpu();
    return std::equal(p.host<float>().begin(), p.host<float>().end(), q.host<float>().begin());
  };
  if (second != device(0)) {
    EXPECT_TRUE(same(a, rand({1001}, {.on = second})));
  }
  EXPECT_TRUE(same(a, rand({1001}, {.on = cpu})));
  tensor const b_here = b.cpu(), c = randn({1001}, {.on = cpu});  // sines and logarithms differ in their last bits
  for (size_t i = 0; i < 1001; ++i)
    ASSERT_NEAR(c.host<float>()[i], b_here.host<float>()[i], 1e-5) << i;
  manual_seed(7);
  EXPECT_TRUE(same(a, rand({1001}, {.on = 0})));
  EXPECT_TRUE(same(b, randn({1001}, {.on = 0})));
  EXPECT_FALSE(same(a, rand({1001}, {.on = 0})));
  manual_seed(8);
  EXPECT_FALSE(same(a, rand({1001}, {.on = 0})));
}

TEST_F(arithmetic, random_numbers_have_their_moments) {
  std::int64_t const n = 1 << 20;
  manual_seed(11);
  tensor const u = rand({n}, {.on = cpu}), g = randn({n}, {.on = cpu});
  double mean_u = 0, mean_g = 0, square_u = 0, square_g = 0, neighbours = 0;
  auto const x = u.host<float>(), y = g.host<float>();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(x[i] >= 0 && x[i] < 1 && std::isfinite(y[i])) << i;
    mean_u += x[i], square_u += x[i] * x[i], mean_g += y[i], square_g += y[i] * y[i];
    if (i)
      neighbours += y[i] * y[i - 1];
  }
  auto const count = static_cast<double>(n);
  EXPECT_NEAR(mean_u / count, 0.5, 0.003);
  EXPECT_NEAR(square_u / count, 1.0 / 3, 0.003);
  EXPECT_NEAR(mean_g / count, 0, 0.008);
  EXPECT_NEAR(square_g / count, 1, 0.01);
  EXPECT_NEAR(neighbours / count, 0, 0.008);
}

TEST_F(arithmetic, work_runs_where_its_tensors_are) {
  tensor const a = ones({8}, {.on = second});
  ASSERT_EQ(current_device(), device(0));
  tensor const b = add(a, a);
  EXPECT_EQ(b.device(), second);
  EXPECT_EQ(sum(b).device(), second);
  EXPECT_EQ(mean(b).item<float>(), 2);
}

TEST_F(arithmetic, mixed_devices_shapes_and_dtypes_are_refused) {
  tensor a = ones({2, 2}, {.on = 0}), row = ones({9});
  if (device_count() > 1)
    expect_refusal([&] { a.add_(ones({2, 2}, {.on = 1})); }, {"left on gpu:0", "right on gpu:1"});
  expect_refusal([&] { (void)mul(a, ones({2, 2}, {.on = cpu})); }, {"left on gpu:0", "right on cpu"});
  expect_refusal([&] { (void)add(a, ones({4})); }, {"left [2, 2]", "right [4]"});
  expect_refusal([&] { a.mul_(ones({2, 2}, {.dtype = float64})); }, {"right", "float64"});
  expect_refusal([&] { ones({2}, {.dtype = int32}).relu_(); }, {"int32"});
  expect_refusal([&] { (void)sum(ones({2}, {.dtype = int32})); }, {"int32"});
  expect_refusal([&] { (void)rand({2}, {.dtype = float64}); }, {"float64"});
  expect_refusal([&] { row.slice(0, 1, 9).add_(row.slice(0, 0, 8)); }, {"overlap"});
  EXPECT_EQ(sum(row).item<float>(), 9);
  EXPECT_EQ(sum(a).item<float>(), 4);
}

}  // namespace
