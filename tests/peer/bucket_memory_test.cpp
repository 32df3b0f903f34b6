// Gradient buckets and memory: tensors and uses of launches over them, and gradients in the program's own memory.
#include "tests/peer/ranks.h"
#include "weir/launch.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace {

using namespace weir;
using namespace weir::test;

TEST(bucket_tensors, lie_over_parameters_and_gradients) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  g.add("a", 6), g.add("none", 0, float64);
  g.build();
  tensor const p = g.parameter_tensor(0, {2, 3}), d = g.gradient_tensor(0, {3, 2, 1});
  EXPECT_EQ(p.data(), g.parameter(0).data);
  EXPECT_EQ(d.data(), g.gradient(0).data);
  EXPECT_EQ(d.shape(), (shape{3, 2, 1}));
  EXPECT_EQ(d.device(), device(0));
  EXPECT_EQ(g.gradient_tensor(1, {0, 7}).dtype(), float64);
  for (std::string const& said : {refusal<invalid_use>([&] { (void)g.parameter_tensor(0, {7}); }),
                                  refusal<invalid_use>([&] { (void)g.gradient_tensor(0, {7}); })})
    EXPECT_NE(said.find("shape [7] of 7 elements for 6"), std::string::npos) << said;
}

// They are of the communicator's runtime, whatever runtime is current.
TEST(bucket_tensors, belong_to_the_runtime_of_their_ranks) {
  runtime own(simulated{.devices = 2, .memory = 16_MiB});
  std::vector<communicator> ranks;
  {
    runtime_guard const in(own);
    ranks = communicator::create_all(std::vector{device(1)});
  }
  gradient_buckets g(ranks[0]);
  g.add("a", 6);
  g.build();
  tensor const d = g.gradient_tensor(0, {6});
  EXPECT_EQ(d.device(), device(1));
  runtime_guard const in(own);
  EXPECT_EQ(sum(d.clone()).item<float>(), 0);
}

TEST(device_spans, are_uses_of_a_launch_to_the_last_byte) {
  float memory[3];
  device_span const some{memory, 3}, none{nullptr, 0};
  memory_use const all[] = {reads(some), writes(some), updates(some)};
  access_mode const how[] = {access_mode::read, access_mode::write, access_mode::update};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].address, memory);
    EXPECT_EQ(all[i].bytes, 12u);
    EXPECT_EQ(all[i].how, how[i]);
  }
  EXPECT_EQ(updates(none).address, nullptr);
  EXPECT_EQ(updates(device_span{memory, 0}).address, nullptr) << "a size of 0 would mean the whole block";
}

}  // namespace
