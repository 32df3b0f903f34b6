// Views of tensors against lists of positions, and refused views.
#include <array>
#include <cmath>

#include "tests/tensor/model.h"

using namespace weir;
using namespace weir::testing;

namespace {

class tensor_view : public on_devices {};

TEST_F(tensor_view, any_chain_of_views_agrees_with_the_model) {
  for (int round = 0; round < 300; ++round) {
    extents const s = random_shape(random);
    model_view const all = model_view::whole(s);
    tensor const base =
        arange(static_cast<std::int64_t>(all.at.size()), options_at(random.one_of(places))).view(shape_of(s));
    modelled const v = random_view({base, all}, random, random.between(1, 5));
    ASSERT_EQ(v.t.shape(), shape_of(v.m.shape));
    ASSERT_EQ(v.t.storage(), base.storage());
    ASSERT_EQ(v.t.numel(), static_cast<std::int64_t>(v.m.at.size()));
    tensor const whole = v.t.contiguous().cpu();
    auto const is = whole.host<float>();
    for (size_t i = 0; i < v.m.at.size(); ++i)
      ASSERT_EQ(is[i], static_cast<float>(v.m.at[i]))
          << "round " << round << ", element " << i << " of " << v.t.shape().str();
  }
}

TEST_F(tensor_view, reshape_keeps_order_and_shares_as_view_does) {
  int shared = 0, copied = 0;
  for (int round = 0; round < 400; ++round) {
    extents const s = random_shape(random, 4, 6);
    model_view const all = model_view::whole(s);
    tensor const base = arange(static_cast<std::int64_t>(all.at.size()), {.on = cpu}).view(shape_of(s));
    modelled const v = random_view({base, all}, random, random.between(0, 3));
    extents split{v.t.numel()};
    for (int i = 0; i < 3 && v.t.numel() > 0; ++i) {
      std::int64_t const last = split.back(), d = random.between(1, last);
      if (last % d == 0)
        split.back() = d, split.push_back(last / d);
    }
    tensor const r = v.t.reshape(shape_of(split)), whole = r.contiguous();
    for (size_t i = 0; i < v.m.at.size(); ++i)
      ASSERT_EQ(whole.host<float>()[i], static_cast<float>(v.m.at[i])) << "round " << round;
    bool const shares = r.storage() == base.storage();
    ++(shares ? shared : copied);
    if (shares)
      EXPECT_EQ(v.t.view(shape_of(split)).strides(), r.strides());
    else
      EXPECT_THROW((void)v.t.view(shape_of(split)), invalid_use);
  }
  EXPECT_GT(shared, 0);
  EXPECT_GT(copied, 0);
}

TEST_F(tensor_view, a_transposed_matrix_can_be_split_but_not_joined) {
  tensor const t = empty({4, 6}, {.on = cpu}).t();
  EXPECT_EQ(t.view({2, 3, 4}).strides(), (strides{3, 1, 6}));
  EXPECT_EQ(t.view({6, 1, 4}).shape(), (shape{6, 1, 4}));
  EXPECT_THROW((void)t.view({24}), invalid_use);
  EXPECT_THROW((void)t.view({3, 8}), invalid_use);
}

TEST_F(tensor_view, one_extent_may_be_left_open) {
  tensor const t = empty({4, 6}, {.on = cpu});
  EXPECT_EQ(t.view({-1}).shape(), (shape{24}));
  EXPECT_EQ(t.view({3, -1}).shape(), (shape{3, 8}));
  EXPECT_THROW((void)t.view({-1, -1}), invalid_use);
  EXPECT_THROW((void)t.view({5, -1}), invalid_use);
  EXPECT_THROW((void)empty({0}, {.on = cpu}).view({0, -1}), invalid_use);
}

TEST_F(tensor_view, refusals_name_what_was_asked_and_what_is) {
  tensor const t = empty({4, 6}, {.on = cpu});
  expect_refusal([&] { (void)t.t().view({24}); }, {"[6, 4]", "[1, 6]", "[24]", "reshape"});
  expect_refusal([&] { (void)t.view({5, 5}); }, {"24", "[5, 5]"});
  expect_refusal([&] { (void)t.slice(0, 2, 5); }, {"[2, 5)", "[4, 6]"});
  expect_refusal([&] { (void)t.slice(0, 3, 2); }, {"[3, 2)"});
  expect_refusal([&] { (void)t.slice(2, 0, 1); }, {"dimension 2", "[4, 6]"});
  expect_refusal([&] { (void)t[4]; }, {"index 4", "[4, 6]"});
  expect_refusal([&] { (void)t[-5]; }, {"index -5"});
  expect_refusal([&] { (void)t.transpose(0, 2); }, {"dimension 2"});
  expect_refusal([&] { (void)empty({2, 2, 2}, {.on = cpu}).t(); }, {"[2, 2, 2]"});
  expect_refusal([&] { (void)t.data<int>(); }, {"int32", "float32 [4, 6]"});
  expect_refusal([&] { (void)t.data<std::uint16_t>(); }, {"uint16_t", "float32"});
  expect_refusal([&] { (void)t.t().host<float>(); }, {"[1, 6]", "contiguous"});
  expect_refusal([&] { (void)empty({2}).host<float>(); }, {"gpu:0", "cpu()"});
  expect_refusal([&] { (void)tensor().contiguous(); }, {"undefined"});
  expect_refusal([&] { (void)tensor().view({1}); }, {"undefined"});
  expect_refusal([&] { (void)empty({-1, 2}); }, {"[-1, 2]", "negative"});
  expect_refusal([&] { (void)empty({std::int64_t{1} << 32, std::int64_t{1} << 32}); }, {"[4294967296, 4294967296]"});
  expect_refusal([&] { (void)empty({std::int64_t{1} << 62}, {.dtype = float64}); }, {"[4611686018427387904]", "2^64"});
  expect_refusal([&] { (void)shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }, {"9", "8"});
  expect_refusal([&] { (void)empty({2}, {.on = 99}); }, {"gpu:99", std::to_string(device_count())});
  expect_refusal([&] { (void)empty({2}, {.on = 0, .kind = memory_kind::pinned}); }, {"gpu:0", "cpu"});
  expect_refusal([&] { (void)tensor::from_blob(nullptr, {2}, float32, cpu); }, {"null"});
  expect_refusal([&] { (void)tensor::from_buffer(buffer(16), {5}, float32); }, {"16 B", "[5]"});
}

TEST_F(tensor_view, a_tensor_of_a_buffer_keeps_it_alive) {
  buffer b(64);
  void* const p = b.data();
  tensor const row = tensor::from_buffer(std::move(b), {2, 8}, float32)[1];
  EXPECT_EQ(row.data(), static_cast<char*>(p) + 32);
  EXPECT_EQ(row.device(), device(0));
  EXPECT_TRUE(find_block(p).has_value());
}

TEST_F(tensor_view, the_last_view_gives_the_memory_back) {
  void* p = nullptr;
  {
    tensor row;
    {
      tensor const t = zeros({8, 1024});
      p = t.data();
      row = t[3];
    }
    EXPECT_TRUE(find_block(p).has_value());
  }
  EXPECT_FALSE(find_block(p).has_value());
}

TEST_F(tensor_view, borrowed_pinned_memory_is_kept_by_its_owner) {
  buffer const block = pinned(64);
  std::array<float, 16> own{};
  registered_host_memory const lock(std::as_writable_bytes(std::span(own)));
  for (void* const p : {block.data(), static_cast<void*>(own.data())}) {
    tensor const t = tensor::from_blob(p, {16}, float32, cpu);
    EXPECT_TRUE(t.is_pinned());
    tensor const seen = t.peer_view(0);
    EXPECT_EQ(seen.device(), device(0));
    EXPECT_EQ(seen.data(), p);
    EXPECT_NO_THROW(t.record_stream(current_stream(device(0))));
  }
}

TEST_F(tensor_view, changes_in_place_count_the_storages_version_up) {
  tensor t = zeros({4});
  auto const before = t.storage().version();
  tensor half = t.slice(0, 0, 2);
  half.fill_(1);
  EXPECT_EQ(t.storage().version(), before + 1);
  half.add_(half).mul_(2).relu_().zero_().copy_(ones({2}));
  EXPECT_EQ(t.storage().version(), before + 6);
  (void)add(t, t), (void)sum(t), (void)t.clone();
  EXPECT_EQ(t.storage().version(), before + 6);
}

TEST_F(tensor_view, empty_tensors_are_valid_everywhere) {
  for (auto const& place : places) {
    tensor t = zeros({3, 0, 2}, options_at(place));
    EXPECT_EQ(t.numel(), 0);
    EXPECT_TRUE(t.is_contiguous());
    t.fill_(1).add_(t).mul_(3).relu_();
    EXPECT_EQ(t.clone().to(float64).shape(), t.shape());
    EXPECT_EQ(sum(t).item<float>(), 0);
    EXPECT_TRUE(std::isnan(mean(t).item<float>()));
    EXPECT_EQ(t.slice(0, 1, 3).transpose(0, 2).reshape({0}).numel(), 0);
    EXPECT_EQ(t.cpu().numel(), 0);
  }
}

}  // namespace
