// Tensors made like others, from lists and on storages; detach, normal_ and sin, against simple models.
// Threads: one.
#include <cmath>

#include "tests/tensor/model.h"
#include "weir/stream.h"

using namespace weir;
using namespace weir::testing;

namespace {

class tensor_new : public on_devices {
 protected:
  static std::vector<double> values(tensor const& t) {
    tensor const h = t.to(float64).cpu().contiguous();
    auto const all = h.host<double>();
    return {all.begin(), all.end()};
  }
};

TEST_F(tensor_new, new_ones_take_place_and_dtype_of_their_model) {
  for (auto const place : places) {
    for (dtype const type : {float32, float64, int64, uint8}) {
      tensor const like = empty({3}, options_at(place, type));
      device_guard const elsewhere{place.on == second ? device(0) : second};
      struct made {
        tensor t;
        double value;
      };
      made const all[] = {{like.new_empty({2, 2}), NAN},
                          {like.new_zeros({2, 2}), 0},
                          {like.new_ones({2, 2}), 1},
                          {like.new_full({2, 2}, 7), 7},
                          {full_like(like.new_empty({2, 2}), 5), 5}};
      for (auto const& [t, value] : all) {
        EXPECT_EQ(t.device(), like.device());
        EXPECT_EQ(t.dtype(), type);
        EXPECT_EQ(t.is_pinned(), like.is_pinned());
        EXPECT_EQ(t.shape(), (shape{2, 2}));
        if (!std::isnan(value)) {
          EXPECT_EQ(values(t), std::vector<double>(4, value));
        }
      }
      tensor const list = like.new_tensor({1, 2, 3}), rows = like.new_tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}});
      EXPECT_EQ(list.dtype(), type);
      EXPECT_EQ(list.device(), like.device());
      EXPECT_EQ(values(list), (std::vector<double>{1, 2, 3}));
      EXPECT_EQ(rows.shape(), (shape{3, 2}));
      EXPECT_EQ(values(rows), (std::vector<double>{1, 2, 3, 4, 5, 6}));
    }
  }
}

TEST_F(tensor_new, lists_of_equal_rows_are_matrices) {
  tensor const m = tensor_of({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(m.dtype(), int32);
  EXPECT_EQ(m.shape(), (shape{2, 3}));
  EXPECT_EQ(m[1][2].item<int>(), 6);
  expect_refusal([] { (void)tensor_of({{1, 2, 3}, {4, 5}}); }, {"tensor_of", "rows of 3 and of 2", "equal length"});
  expect_refusal([&] { (void)m.new_tensor({{1.f}, {2.f, 3.f}}); }, {"rows of 1 and of 2"});
  expect_refusal([] { (void)tensor().new_zeros({1}); }, {"new_zeros", "undefined"});
  EXPECT_EQ(tensor_of(std::initializer_list<float>{}).shape(), (shape{0}));
}

TEST_F(tensor_new, empty_ones_may_have_overflowing_extents) {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  for (shape const& s : {shape{0, huge, 4}, shape{huge, 4, 0}, shape{4, 0, huge, huge}}) {
    tensor const t = empty(s, {.on = cpu});
    EXPECT_EQ(t.numel(), 0);
    EXPECT_EQ(t.nbytes(), 0u);
    EXPECT_TRUE(t.is_contiguous());
    for (std::int64_t const step : t.strides())
      EXPECT_GT(step, 0) << t.strides().str();
    EXPECT_EQ(t.clone().shape(), s);
  }
  EXPECT_THROW((void)empty({huge, 4}, {.on = cpu}), invalid_use);
}

TEST_F(tensor_new, detach_shares_the_storage) {
  tensor const t = ones({4}), d = t.slice(0, 1, 3).detach();
  EXPECT_EQ(d.storage(), t.storage());
  EXPECT_EQ(d.storage_offset(), 1);
  expect_refusal([] { (void)tensor().detach(); }, {"detach", "undefined"});
}

TEST_F(tensor_new, normal_draws_what_randn_draws_moved_and_scaled) {
  for (auto const place : places) {
    manual_seed(7);
    std::vector<double> const plain = values(randn({10, 7}, options_at(place)));
    manual_seed(7);
    tensor t = empty({10, 7}, options_at(place));
    std::uint64_t const version = t.storage().version();
    t.normal_(3, 0.5);
    EXPECT_GT(t.storage().version(), version);
    std::vector<double> const drawn = values(t);
    manual_seed(7);
    tensor turned = zeros({7, 10}, options_at(place));
    turned.t().normal_();
    std::vector<double> const across = values(turned.t());
    manual_seed(7);
    std::vector<double> const like = values(randn_like(t));
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(drawn[i], static_cast<double>(3.0f + 0.5f * static_cast<float>(plain[i]))) << i;
      EXPECT_EQ(across[i], plain[i]) << i;
      EXPECT_EQ(like[i], plain[i]) << i;
    }
  }
  manual_seed(7);
  std::vector<double> const uniform = values(rand({5}, {.on = cpu}));
  manual_seed(7);
  EXPECT_EQ(values(rand_like(empty({5}, {.on = cpu}))), uniform);
  expect_refusal([] { ones({2}).normal_(0, -1); }, {"normal_", "-1", "0 or more"});
  expect_refusal([] { ones({2}, {.dtype = float64}).normal_(); }, {"normal_", "float64", "float32"});
  expect_refusal([] { (void)randn_like(ones({2}, {.dtype = int32})); }, {"randn_like", "int32"});
}

TEST_F(tensor_new, sine_of_any_view_is_that_of_its_elements) {
  for (auto const place : places) {
    tensor const x = randn({6, 5}, options_at(place)), y = sin(x.t());
    EXPECT_EQ(y.device(), x.device());
    std::vector<double> const from = values(x.t()), to = values(y);
    for (size_t i = 0; i < from.size(); ++i)
      EXPECT_NEAR(to[i], std::sin(from[i]), 1e-6);
  }
  expect_refusal([] { (void)sin(ones({2}, {.dtype = int64})); }, {"sin", "int64"});
}

TEST_F(tensor_new, a_storages_pinned_copy_can_be_read_as_a_tensor) {
  tensor const t = arange(100, {.on = cpu});
  storage const pinned = t.slice(0, 10, 20).storage().pin_memory();  // all of the storage, as in torch
  EXPECT_EQ(pinned.kind(), memory_kind::pinned);
  EXPECT_EQ(pinned.nbytes(), t.nbytes());
  EXPECT_FALSE(pinned == t.storage());
  EXPECT_TRUE(pinned.pin_memory() == pinned);
  tensor const seen = tensor::from_storage(pinned, {9, 10}, float32, 10);
  EXPECT_TRUE(seen.is_pinned());
  for (std::int64_t i = 0; i < 90; ++i)
    EXPECT_EQ(seen.host<float>()[static_cast<size_t>(i)], static_cast<float>(10 + i));
  expect_refusal([&] { (void)ones({2}).storage().pin_memory(); }, {"storage::pin_memory", "gpu:0", "cpu()"});
  expect_refusal([&] { (void)storage().pin_memory(); }, {"no storage"});
  expect_refusal([&] { (void)tensor::from_storage(pinned, {101}, float32); }, {"400 B", "[101]"});
  expect_refusal([&] { (void)tensor::from_storage(pinned, {1}, float32, 100); }, {"400 B", "element 100"});
  expect_refusal([&] { (void)tensor::from_storage(pinned, {1}, float32, -1); }, {"element -1"});
  expect_refusal([&] { (void)tensor::from_storage(storage(), {1}, float32); }, {"no storage"});
}

}  // namespace
