// WEIR_CONF and WEIR_DEVICES: what is understood, and what a person reads when it is not.
#include "runtime/options.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

template <class F>
std::string refused(F f) {
  try {
    f();
  } catch (invalid_use const& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

bool has(std::string const& text, char const* part) { return text.find(part) != text.npos; }

TEST(options, every_key_is_read_with_its_unit) {
  options const o = parse_options("device_limit:2GiB,pinned_limit:512MiB,address_space:1TiB,launch_blocking:true");
  EXPECT_EQ(o.device_limit, 2_GiB);
  EXPECT_EQ(o.pinned_limit, 512_MiB);
  EXPECT_EQ(o.address_space, size_t{1} << 40);
  EXPECT_TRUE(o.launch_blocking);
  EXPECT_FALSE(o.announce_blocks);
  EXPECT_TRUE(parse_options("announce_blocks:true").announce_blocks);
  EXPECT_EQ(parse_options("device_limit:4096").device_limit, 4096u);
  EXPECT_EQ(parse_options("").device_limit, 0u);
}

TEST(options, an_unknown_key_is_refused_with_the_nearest_right_one) {
  std::string const said = refused([] { parse_options("device_limt:2GiB"); });
  EXPECT_TRUE(has(said, "\"device_limt\"")) << said;
  EXPECT_TRUE(has(said, "Did you mean device_limit?")) << said;
}

TEST(options, a_value_that_is_no_size_is_refused) {
  EXPECT_TRUE(has(refused([] { parse_options("device_limit:lots"); }), "\"lots\" is no size"));
  EXPECT_TRUE(has(refused([] { parse_options("device_limit:99999999999TiB"); }), "is no size"));
  EXPECT_TRUE(has(refused([] { parse_options("launch_blocking:maybe"); }), "neither true nor false"));
  EXPECT_TRUE(has(refused([] { parse_options("device_limit"); }), "has no value"));
}

TEST(options, devices_are_auto_cuda_or_sim_with_a_number_and_a_size) {
  EXPECT_EQ(parse_devices("auto").which, machine_choice::kind::automatic);
  EXPECT_EQ(parse_devices("cuda").which, machine_choice::kind::cuda);
  EXPECT_EQ(parse_devices("sim").sim.devices, 4);
  EXPECT_EQ(parse_devices("sim:2").sim.devices, 2);
  machine_choice const c = parse_devices("sim:3:8");
  EXPECT_EQ(c.which, machine_choice::kind::simulated);
  EXPECT_EQ(c.sim.devices, 3);
  EXPECT_EQ(c.sim.memory, 8_GiB);
}

TEST(options, an_unknown_machine_is_refused_with_the_nearest_right_one) {
  EXPECT_TRUE(has(refused([] { parse_devices("cdua"); }), "Did you mean cuda?"));
  EXPECT_TRUE(has(refused([] { parse_devices("sim:0"); }), "\"0\" is no number of devices"));
  EXPECT_TRUE(has(refused([] { parse_devices("sim:2:x"); }), "\"x\" is no number of GiB"));
  EXPECT_TRUE(has(refused([] { parse_devices("cuda:1"); }), "CUDA_VISIBLE_DEVICES"));
}

}  // namespace
}  // namespace weir
