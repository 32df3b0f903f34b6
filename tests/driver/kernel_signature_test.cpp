// What a kernel's mangled name tells of its parameters.
#include "runtime/driver/kernel_signature.h"

#include <gtest/gtest.h>

namespace weir::driver {
namespace {

using enum parameter_kind;
using kinds = std::vector<parameter_kind>;

TEST(kernel_signature, of_pointers_and_numbers_is_read) {
  kernel_signature const is = signature_of("_Z1kPfPKfi");
  EXPECT_EQ(is.name, "k");
  EXPECT_TRUE(is.is_known);
  EXPECT_EQ(is.parameters, (kinds{may_write, reads, value}));
}

TEST(kernel_signature, of_a_template_leaves_out_its_return_type) {
  kernel_signature const is = signature_of("_Z2ktIfEvPT_PKS0_1slS0_");
  EXPECT_EQ(is.name, "kt<float>");
  EXPECT_EQ(is.parameters, (kinds{may_write, reads, value, value, value}));
}

TEST(kernel_signature, without_parameters_is_known) {
  kernel_signature const is = signature_of("_Z5emptyv");
  EXPECT_TRUE(is.is_known);
  EXPECT_TRUE(is.parameters.empty());
}

TEST(kernel_signature, of_a_name_that_is_not_mangled_is_unknown) {
  kernel_signature const is = signature_of("triton_poi_fused_0");
  EXPECT_EQ(is.name, "triton_poi_fused_0");
  EXPECT_FALSE(is.is_known);
  EXPECT_TRUE(is.parameters.empty());
}

struct read_text {
  char const* text;
  char const* name;
  kinds are;
};

TEST(kernel_signature, counts_commas_at_the_top_alone) {
  read_text const all[] = {
      {"void add<4, f<int, int>(int, int)>(std::array<char*, 3ul>, int*)",
       "add<4, f<int, int>(int, int)>",
       {value, may_write}},
      {"(anonymous namespace)::k(float const*)", "(anonymous namespace)::k", {reads}},
      {"k(float const**, float* const*)", "k", {may_write, reads}},
      {"k(float* __restrict__, float const* __restrict__)", "k", {may_write, reads}},
      {"k(void (*)(int*, int), int&, int const&)", "k", {value, may_write, reads}},
      {"void at::k<f::{lambda(int)#1}>(int, f::{lambda(int)#1}, std::array<char*, 2>)",
       "at::k<f::{lambda(int)#1}>",
       {value, value, value}},
      {"k(float*) [clone .kd]", "k", {may_write}},
  };
  for (read_text const& each : all) {
    kernel_signature const is = signature_of_text(each.text);
    EXPECT_TRUE(is.is_known) << each.text;
    EXPECT_EQ(is.name, each.name) << each.text;
    EXPECT_EQ(is.parameters, each.are) << each.text;
  }
}

TEST(kernel_signature, of_text_without_a_list_is_unknown) {
  for (char const* const text : {"", ")", "k", "k)", "((", "operator()"})
    EXPECT_FALSE(signature_of_text(text).is_known && !signature_of_text(text).parameters.empty()) << text;
}

}  // namespace
}  // namespace weir::driver
