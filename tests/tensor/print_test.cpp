// Tensors as text, exactly as torch prints the same values; devices and dtypes have weir's names.
// Threads: one.
#include <cmath>
#include <limits>
#include <sstream>

#include "tests/tensor/model.h"

using namespace weir;
using namespace weir::testing;

namespace {

class tensor_print : public on_devices {};

std::string text(tensor const& t) {
  return t.str();
}
constexpr tensor_options host{.on = cpu};

TEST_F(tensor_print, one_way_of_writing_serves_all_elements) {
  EXPECT_EQ(text(tensor_of({1.12345f}, host)), "tensor([1.1235])");
  EXPECT_EQ(text(tensor_of({1.5f, -20.25f}, host)), "tensor([  1.5000, -20.2500])");
  EXPECT_EQ(text(zeros({2, 3}, host)), "tensor([[0., 0., 0.],\n        [0., 0., 0.]])");
  EXPECT_EQ(text(tensor_of({1.0f, 1000.0f}, host)), "tensor([   1., 1000.])");
  EXPECT_EQ(text(tensor_of({1, -20, 300}, host)), "tensor([  1, -20, 300], dtype=int32)");
  EXPECT_EQ(text(tensor_of({std::int64_t{1}, std::int64_t{1} << 62}, host)),
            "tensor([                  1, 4611686018427387904])");
  EXPECT_EQ(text(tensor_of({true, false}, host)), "tensor([ True, False])");
  EXPECT_EQ(text(tensor_of({0.5, 0.25}, host)), "tensor([0.5000, 0.2500], dtype=float64)");
  EXPECT_EQ(text(tensor_of({0.5f, 3.0f}, host).to(bfloat16)), "tensor([0.5000, 3.0000], dtype=bfloat16)");
}

TEST_F(tensor_print, scientific_where_values_are_extreme) {
  EXPECT_EQ(text(tensor_of({1e-5f, 1.0f}, host)), "tensor([1.0000e-05, 1.0000e+00])");
  EXPECT_EQ(text(tensor_of({1.0f, 10000.0f}, host)), "tensor([1.0000e+00, 1.0000e+04])");
  EXPECT_EQ(text(tensor_of({2e8f, 2e8f}, host)), "tensor([2.0000e+08, 2.0000e+08])");
  EXPECT_EQ(text(tensor_of({5e-5f}, host)), "tensor([5.0000e-05])");
  EXPECT_EQ(text(tensor_of({0.0f, 0.001f, 0.999f}, host)), "tensor([0.0000, 0.0010, 0.9990])");
}

TEST_F(tensor_print, what_is_no_number_has_no_point) {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  EXPECT_EQ(text(tensor_of({nan, 1.5f}, host)), "tensor([   nan, 1.5000])");
  EXPECT_EQ(text(tensor_of({-nan, inf, -inf, 1.0f}, host)), "tensor([nan, inf, -inf, 1.])");
  EXPECT_EQ(text(tensor_of({nan, nan}, host)), "tensor([nan, nan])");
}

TEST_F(tensor_print, scalars_empty_ones_and_three_dimensions) {
  EXPECT_EQ(text(full({}, 3.5, host)), "tensor(3.5000)");
  EXPECT_EQ(text(full({}, 3, host)), "tensor(3.)");
  EXPECT_EQ(text(empty({0}, host)), "tensor([])");
  EXPECT_EQ(text(empty({2, 0}, host)), "tensor([], size=(2, 0))");
  EXPECT_EQ(text(empty({0}, {.dtype = int64, .on = cpu})), "tensor([], dtype=int64)");
  EXPECT_EQ(text(zeros({2, 2, 2}, host)),
            "tensor([[[0., 0.],\n         [0., 0.]],\n\n        [[0., 0.],\n         [0., 0.]]])");
  EXPECT_EQ(text(tensor()), "tensor(undefined)");
}

TEST_F(tensor_print, lines_break_at_eighty_columns) {
  EXPECT_EQ(text(arange(30, {.dtype = int64, .on = cpu})),
            "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n        18, 19, 20, 21, "
            "22, 23, 24, 25, 26, 27, 28, 29])");
  EXPECT_EQ(text(arange(18, {.dtype = int32, .on = cpu})),
            "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17],\n       dtype=int32)");
}

TEST_F(tensor_print, beyond_a_thousand_elements_the_edges_are_shown) {
  EXPECT_EQ(text(arange(1001, {.dtype = int64, .on = cpu})), "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
  std::string const row = "[0., 0., 0.,  ..., 0., 0., 0.]", gap = ",\n        ";
  EXPECT_EQ(text(zeros({100, 100}, host)),
            "tensor([" + row + gap + row + gap + row + gap + "..." + gap + row + gap + row + gap + row + "])");
  EXPECT_EQ(text(arange(1001, {.dtype = int64, .on = cpu}).slice(0, 0, 1000)).find("..."), std::string::npos);
}

std::vector<std::int64_t> numbers_in(std::string const& s) {
  std::vector<std::int64_t> all;
  for (size_t i = 0; i < s.size();) {
    size_t const end = s.find_first_not_of("0123456789", i);
    if (end != i)
      all.push_back(std::stoll(s.substr(i, end - i)));
    i = end == i ? i + 1 : std::min(end, s.size());
  }
  return all;
}

TEST_F(tensor_print, a_summary_shows_the_elements_of_any_view) {
  for (int round = 0; round < 40; ++round) {
    extents const s = random_shape(random, 4, 14);
    model_view const all = model_view::whole(s);
    if (all.at.empty())
      continue;
    tensor const base =
        arange(static_cast<std::int64_t>(all.at.size()), options_at(random.one_of(places), int64)).view(shape_of(s));
    modelled const v = random_view({base, all}, random, random.between(0, 3));
    if (v.t.numel() == 0)
      continue;
    std::vector<std::int64_t> should;
    for (size_t i = 0; i < v.m.at.size(); ++i) {
      bool is_shown = true;
      auto rest = static_cast<std::int64_t>(i);
      for (size_t d = v.m.shape.size(); d-- > 0; rest /= v.m.shape[d]) {
        std::int64_t const k = rest % v.m.shape[d];
        is_shown &= v.t.numel() <= 1000 || v.m.shape[d] <= 6 || k < 3 || k >= v.m.shape[d] - 3;
      }
      if (is_shown)
        should.push_back(v.m.at[i]);
    }
    std::string const said = text(v.t);
    ASSERT_EQ(numbers_in(said.substr(0, said.find("device"))), should) << said;
  }
}

TEST_F(tensor_print, devices_are_named_and_ostreams_work) {
  std::ostringstream out;
  out << ones({2});
  EXPECT_EQ(out.str(), "tensor([1., 1.], device='gpu:0')");
  EXPECT_EQ(text(tensor_of({1, 2}, {.on = second})), "tensor([1, 2], device='" + second.str() + "', dtype=int32)");
}

}  // namespace
