// Matrix products of any layout, against three loops.
// Threads: one.
#include <cmath>

#include "tests/tensor/model.h"

using namespace weir;
using namespace weir::testing;

namespace {

class tensor_matmul : public on_devices {
 protected:
  struct matrix {
    tensor t;
    std::vector<float> at;
    std::int64_t rows, columns;
    float operator()(std::int64_t i, std::int64_t j, bool turned) const {
      return at[static_cast<size_t>(turned ? j * columns + i : i * columns + j)];
    }
  };
  // Contiguous rows or columns, or gaps in both, perhaps in a larger storage. Other elements are NaN.
  matrix random_matrix(std::int64_t rows, std::int64_t columns, memory_of_tensor place) {
    matrix m{{}, std::vector<float>(static_cast<size_t>(rows * columns)), rows, columns};
    for (float& v : m.at)
      v = random.number();
    switch (random.between(0, 3)) {
      case 0: m.t = full({rows, columns}, NAN, options_at(place)); break;
      case 1:
        m.t = full({rows + 2, columns + 3}, NAN, options_at(place)).slice(0, 1, rows + 1).slice(1, 2, columns + 2);
        break;
      case 2:
        m.t = full({columns + 1, rows + 1}, NAN, options_at(place)).t().slice(0, 1, rows + 1).slice(1, 0, columns);
        break;
      default: m.t = full({rows, columns, 2}, NAN, options_at(place)).transpose(0, 2)[1].t(); break;
    }
    if (!m.at.empty())
      m.t.copy_(tensor::from_blob(m.at.data(), {rows, columns}, float32, cpu));
    return m;
  }
};

TEST_F(tensor_matmul, any_layout_transposition_and_place) {
  for (int round = 0; round < 300; ++round) {
    auto const place = random.one_of(places);
    auto const m = random.between(1, 12), n = random.between(1, 12),
               k = random.between(0, 10) ? random.between(1, 20) : 0;
    auto const how = static_cast<transposed>(random.between(0, 3));
    bool const left = how == transposed::left || how == transposed::both,
               right = how == transposed::right || how == transposed::both;
    matrix const a = left ? random_matrix(k, m, place) : random_matrix(m, k, place),
                 b = right ? random_matrix(n, k, place) : random_matrix(k, n, place);
    matrix c = random_matrix(m, n, place);
    double const beta = random.between(0, 1) ? 0 : 0.5;
    if (beta == 0)
      c.t.fill_(NAN);  // must have no effect
    std::vector<double> should(static_cast<size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double& x = should[static_cast<size_t>(i * n + j)];
        x = beta * c(i, j, false);
        for (std::int64_t l = 0; l < k; ++l)
          x += static_cast<double>(a(i, l, left)) * b(l, j, right);
      }
    }
    matmul_out(c.t, a.t, b.t, how, beta);
    tensor const is = c.t.contiguous().cpu();
    for (size_t i = 0; i < should.size(); ++i)
      ASSERT_NEAR(is.host<float>()[i], should[i], 1e-4) << "round " << round << ": " << m << " x " << k << " x " << n;
    if (beta == 0) {
      tensor const fresh = matmul(a.t, b.t, how).cpu();
      ASSERT_EQ(fresh.shape(), (shape{m, n}));
      for (size_t i = 0; i < should.size(); ++i)
        ASSERT_NEAR(fresh.host<float>()[i], should[i], 1e-4) << "round " << round;
    }
  }
}

TEST_F(tensor_matmul, a_product_writes_nothing_beside_its_target) {
  tensor const wide = zeros({4, 8});
  tensor out = wide.slice(1, 2, 5);
  matmul_out(out, ones({4, 6}), ones({6, 3}));
  tensor const is = wide.cpu();
  for (size_t i = 0; i < 32; ++i)
    ASSERT_EQ(is.host<float>()[i], i % 8 >= 2 && i % 8 < 5 ? 6 : 0) << i;
}

TEST_F(tensor_matmul, columns_may_be_operand_and_target_if_apart) {
  tensor const wide = ones({4, 12});
  tensor left = wide.slice(1, 0, 4), right = wide.slice(1, 4, 8), out = wide.slice(1, 8, 12);
  matmul_out(out, left, right);
  EXPECT_EQ(sum(out).item<float>(), 64);
  EXPECT_EQ(sum(wide).item<float>(), 96);
  tensor across = wide.slice(1, 7, 11), below = wide.slice(0, 1, 4).slice(1, 0, 4);
  EXPECT_THROW(matmul_out(across, left, right), invalid_use);
  EXPECT_THROW(matmul_out(right, left, right), invalid_use);
  EXPECT_THROW(matmul_out(below, left.slice(0, 0, 3), right), invalid_use);
  EXPECT_NO_THROW(matmul_out(left, out, right));  // the target lies before the operands in memory
}

TEST_F(tensor_matmul, products_of_several_devices_at_once) {
  std::vector<tensor> results;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 2; ++i) {
      device const d = i ? second : device(0);
      results.push_back(matmul(full({256, 256}, 1 + i, {.on = d}), full({256, 256}, round, {.on = d})));
    }
  }
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(mean(results[static_cast<size_t>(i)]).item<float>(), 256.0f * static_cast<float>((1 + i % 2) * (i / 2)));
}

TEST_F(tensor_matmul, refusals_name_both_shapes) {
  tensor const a = ones({2, 3}), b = ones({4, 5});
  tensor out = ones({2, 2});
  expect_refusal([&] { (void)matmul(a, b); }, {"left [2, 3]", "right [4, 5]", "3 columns meet 4 rows"});
  expect_refusal([&] { (void)matmul(a, b, transposed::left); }, {"left [2, 3] transposed", "2 columns meet 4 rows"});
  expect_refusal([&] { (void)matmul(a, ones({3})); }, {"right [3]"});
  expect_refusal([&] { (void)matmul(a, ones({3, 5}, {.on = cpu})); }, {"left on gpu:0", "right on cpu"});
  expect_refusal([&] { (void)matmul(a, ones({3, 5}, {.dtype = float64})); }, {"float64"});
  expect_refusal([&] { matmul_out(out, a, ones({3, 5})); }, {"out [2, 2]", "left [2, 3]", "right [3, 5]", "[2, 5]"});
  expect_refusal([&] { (void)matmul(a, tensor()); }, {"right is undefined"});
  EXPECT_EQ(sum(out).item<float>(), 4);
}

TEST_F(tensor_matmul, halves_are_summed_in_float32_and_rounded_once) {
  for (int round = 0; round < 120; ++round) {
    auto const place = random.one_of(places);
    dtype const type = random.between(0, 1) ? float16 : bfloat16, to = random.between(0, 1) ? type : float32;
    auto const m = random.between(1, 10), n = random.between(1, 10), k = random.between(1, 20);
    auto const how = static_cast<transposed>(random.between(0, 3));
    bool const left = how == transposed::left || how == transposed::both,
               right = how == transposed::right || how == transposed::both;
    matrix const a = left ? random_matrix(k, m, place) : random_matrix(m, k, place),
                 b = right ? random_matrix(n, k, place) : random_matrix(k, n, place);
    tensor const x = a.t.to(type), y = b.t.to(type), xs = x.to(float32).contiguous().cpu(),
                 ys = y.to(float32).contiguous().cpu();
    double const beta = random.between(0, 1) ? 0 : 0.5;
    tensor out = full({m, n}, beta == 0 ? NAN : 3, options_at(place)).to(to);
    matmul_out(out, x, y, how, beta);
    ASSERT_EQ(out.dtype(), to);
    tensor const is = out.to(float32).cpu();
    // relative error of one rounding
    double const steps = to == float32 ? 1e-5 : type == float16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double product = 0, size = 3;
        for (std::int64_t l = 0; l < k; ++l) {
          double const p = static_cast<double>(xs.host<float>()[static_cast<size_t>(left ? l * m + i : i * k + l)]) *
                           ys.host<float>()[static_cast<size_t>(right ? j * k + l : l * n + j)];
          product += p, size += std::abs(p);
        }
        double const should = product + beta * 3;
        ASSERT_NEAR(is.host<float>()[static_cast<size_t>(i * n + j)], should, steps * std::abs(should) + 1e-5 * size)
            << "round " << round << ": " << m << " x " << k << " x " << n;
      }
    }
  }
  EXPECT_EQ(matmul(ones({2, 3}).to(float16), ones({3, 2}).to(float16)).dtype(), float16);
  tensor kept = full({2, 2}, 4).to(bfloat16);
  matmul_out(kept, empty({2, 0}, {.dtype = bfloat16}), empty({0, 2}, {.dtype = bfloat16}), transposed::none, 0.5);
  EXPECT_EQ(sum(kept.to(float32)).item<float>(), 8);
  expect_refusal([&] { (void)matmul(ones({2, 2}).to(float16), ones({2, 2})); }, {"float16", "float32"});
  tensor other = ones({2, 2}).to(bfloat16);
  expect_refusal(
      [&] {
        matmul_out(other, ones({2, 2}).to(float16), ones({2, 2}).to(float16));
      },
      {"out bfloat16", "float16"});
  EXPECT_EQ(sum(other.to(float32)).item<float>(), 4);
}

// The matrices of three dimensions may lie side by side, as the heads of an attention do.
TEST_F(tensor_matmul, three_dimensions_are_a_product_for_each_index) {
  for (int round = 0; round < 100; ++round) {
    auto const place = random.one_of(places);
    auto const count = random.between(0, 5), m = random.between(1, 9), n = random.between(1, 9),
               k = random.between(1, 9);
    auto const how = static_cast<transposed>(random.between(0, 3));
    bool const left = how == transposed::left || how == transposed::both,
               right = how == transposed::right || how == transposed::both;
    dtype const type = random.between(0, 1) ? float32 : bfloat16;
    auto const matrices = [&](std::int64_t rows, std::int64_t columns) {
      tensor const all =
          random.between(0, 1)
              ? empty({count, rows, columns}, options_at(place))
              : empty({rows, count, 2 * columns}, options_at(place)).slice(2, columns, 2 * columns).transpose(0, 1);
      std::vector<float> values(static_cast<size_t>(count * rows * columns));
      for (float& v : values)
        v = static_cast<float>(random.between(-3, 3));
      if (count)
        tensor(all).copy_(tensor::from_blob(values.data(), {count, rows, columns}, float32, cpu));
      return all.to(type);
    };
    tensor const a = left ? matrices(k, m) : matrices(m, k), b = right ? matrices(n, k) : matrices(k, n);
    tensor out = matrices(m, n);
    double const beta = random.between(0, 1);
    std::vector<tensor> should;
    for (std::int64_t i = 0; i < count; ++i) {
      should.push_back(out[i].clone());
      matmul_out(should.back(), a[i], b[i], how, beta);
    }
    matmul_out(out, a, b, how, beta);
    for (std::int64_t i = 0; i < count; ++i) {
      tensor const is = out[i].to(float32).contiguous().cpu(),
                   one = should[static_cast<size_t>(i)].to(float32).contiguous().cpu();
      for (size_t j = 0; j < static_cast<size_t>(m * n); ++j)
        ASSERT_EQ(is.host<float>()[j], one.host<float>()[j]) << "round " << round << ", product " << i;
    }
  }
  tensor const two = ones({2, 3, 3}), three = ones({3, 3, 3});
  expect_refusal([&] { (void)matmul(two, three); }, {"left [2, 3, 3]", "right [3, 3, 3]", "as many matrices"});
  expect_refusal([&] { (void)matmul(two, ones({3, 3})); }, {"right [3, 3]"});
}

// TF32 has 10 bits of fraction: 1 + 2^-20 is read as 1 then. Simulated devices multiply in float32.
TEST_F(tensor_matmul, tf32_is_used_on_gpus_when_allowed) {
  ASSERT_FALSE(tf32_is_allowed());
  tensor const a = zeros({64, 64}), b = ones({64, 64});
  a.slice(1, 0, 1).fill_(1 + 0x1p-20);  // one term in each sum, so that no sum rounds
  auto const first = [&] { return matmul(a, b).cpu().host<float>()[0]; };
  EXPECT_EQ(first(), 1 + 0x1p-20f);
  allow_tf32(true);
  EXPECT_TRUE(tf32_is_allowed());
  EXPECT_EQ(first(), runtime::current().is_simulated() ? 1 + 0x1p-20f : 1.f);
  allow_tf32(false);
  EXPECT_EQ(first(), 1 + 0x1p-20f);
}

TEST_F(tensor_matmul, empty_products_are_zero_or_what_beta_leaves) {
  tensor out = full({2, 3}, 4);
  matmul_out(out, empty({2, 0}), empty({0, 3}), transposed::none, 0.5);
  EXPECT_EQ(sum(out).item<float>(), 12);
  EXPECT_EQ(sum(matmul(empty({2, 0}), empty({0, 3}))).item<float>(), 0);
  EXPECT_EQ(matmul(empty({0, 2}), empty({2, 3})).shape(), (shape{0, 3}));
}

}  // namespace
