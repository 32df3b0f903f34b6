// Work on tensors when the machine refuses: typed errors, nothing lost, all usable afterwards.
// Threads: one.
#include "tests/tensor/model.h"
#include "weir/observe.h"

using namespace weir;
using namespace weir::testing;

namespace {

// A little of everything. Returns: a number that depends on all of it.
double scenario() {
  tensor a = arange(600).view({20, 30}), b = ones({30, 20}, {.on = 1});
  tensor const pinned = full({20, 20}, 2, {.on = cpu, .kind = memory_kind::pinned});
  tensor product = matmul(a, b.to(0).relu_());
  product.add_(pinned.gpu(non_blocking), 0.5).t().contiguous().mul_(2);
  matmul_out(product, a, a, transposed::right, 0.25);
  tensor const back = product.to(float64).slice(0, 3, 17).to(cpu, non_blocking);
  current_stream(0).synchronize();
  return sum(back).item<double>() + mean(product.to(1)).item<double>() + sum(product.cpu()).item<double>();
}

TEST(TensorRefused, EachRefusedDriverCallIsATypedErrorThatLosesNothing) {
  double const should = [] {
    weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 28, .seed = 1}};
    runtime_guard const chosen{machine};
    return scenario();
  }();
  int refused = 0, quiet = 0;  // quiet: calls in a row whose refusal nobody saw: another way was found, or there are no more
  for (std::uint64_t k = 1; quiet < 30; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 28, .seed = 1}};
    runtime_guard const chosen{machine};
    simulation const sim = simulation::of(machine);
    simulation::of(machine).fail_call("any", k);
    int threw = 0;
    for (int run = 0; run < 3; ++run) {  // the refusal may come in the second: the host's calls depend on what it sees done
      try {
        EXPECT_EQ(scenario(), should);
      } catch (error const& e) {
        ++threw;
        EXPECT_FALSE(e.operation().empty());
        EXPECT_FALSE(e.operands().empty());
      }
    }
    ASSERT_LE(threw, 1);
    quiet = threw ? 0 : quiet + 1;
    refused += threw;
    ASSERT_EQ(memory_allocated(0), 0u);
    ASSERT_EQ(memory_allocated(1), 0u);
    ASSERT_EQ(sim.findings(), std::vector<std::string>{});
  }
  EXPECT_GT(refused, 20) << "the scenario makes hardly any driver call";
}

TEST(TensorRefused, WhatDoesNotFitIsOutOfMemoryAndTheRestGoesOn) {
  weir::runtime machine{simulated{.devices = 1, .memory = size_t{1} << 26}};
  runtime_guard const chosen{machine};
  tensor const small = ones({1 << 20});
  EXPECT_THROW((void)empty({std::int64_t{1} << 25}), out_of_memory);
  EXPECT_THROW((void)matmul(ones({1 << 20, 1}), ones({1, 1 << 10})), out_of_memory);
  EXPECT_EQ(sum(small).item<float>(), 1 << 20);
  EXPECT_EQ(memory_allocated(), small.nbytes());
}

TEST(TensorRefused, TensorsOfALostDeviceEndQuietlyAndTheOthersGoOn) {
  weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 26}};
  runtime_guard const chosen{machine};
  {
    tensor lost = ones({1000}, {.on = 0}), other = ones({1000}, {.on = 1});
    simulation::of(machine).lose(0);
    EXPECT_THROW(lost.mul_(2), device_lost);
    EXPECT_THROW((void)lost.cpu(), device_lost);
    EXPECT_THROW(other.copy_(lost), device_lost);
    EXPECT_EQ(sum(other.mul_(2)).item<float>(), 2000);
  }
  EXPECT_EQ(memory_allocated(1), 0u);
}

}  // namespace
