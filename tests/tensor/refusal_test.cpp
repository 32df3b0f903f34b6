// Tensor operations when the machine refuses: typed errors, no leaks, everything usable afterwards.
// Threads: one.
#include "tests/tensor/model.h"
#include "weir/collective.h"
#include "weir/observe.h"

using namespace weir;
using namespace weir::testing;

namespace {

// Uses many operations. Returns: a number that depends on all of them.
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

TEST(tensor_refused, each_refused_driver_call_is_a_typed_error) {
  double const should = [] {
    weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 28, .seed = 1}};
    runtime_guard const chosen{machine};
    return scenario();
  }();
  // quiet: refused calls in a row that threw nothing, because weir used another path or no such call remained
  int refused = 0, quiet = 0;
  for (std::uint64_t k = 1; quiet < 30; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 28, .seed = 1}};
    runtime_guard const chosen{machine};
    simulation const sim = simulation::of(machine);
    simulation::of(machine).fail_call("any", k);
    int threw = 0;
    // the refusal may come in a later run, because the host's calls depend on completion
    for (int run = 0; run < 3; ++run) {
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

TEST(tensor_refused, tensors_past_their_runtime_are_refused) {
  weir::runtime living{simulated{.devices = 2, .memory = size_t{1} << 26}};
  runtime_guard const outside{living};
  tensor t, view, matrix, locked;
  buffer b;
  std::optional<communicator> rank;
  std::optional<gradient_buckets> buckets;
  {
    weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 26}};
    runtime_guard const chosen{machine};
    t = full({2, 3}, 1), view = t.slice(1, 0, 2), matrix = full({4, 4}, 1);
    locked = full({3}, 5, {.on = cpu, .kind = memory_kind::pinned});
    b = buffer(64);
    rank = std::move(communicator::create_all(std::array{device(0)})[0]);
    buckets.emplace(*rank);
    buckets->add("one", 10);
    buckets->build();
    synchronize(0);
  }
  tensor other = zeros({2, 3});
  auto const says = [&](auto call, char const* operation) {
    expect_refusal(call, {operation, "whose runtime has ended"});
  };
  says([&] { t.fill_(2); }, "tensor::fill_");
  says([&] { t.copy_(other); }, "tensor::copy_");
  says([&] { other.copy_(t); }, "tensor::copy_");
  says([&] { other.add_(t); }, "tensor::add_");
  says([&] { (void)add(t, other); }, "add");
  says([&] { (void)sum(view); }, "sum");
  says([&] { (void)matmul(matrix, matrix); }, "matmul");
  says([&] { (void)t.cpu(); }, "tensor::to");
  says([&] { (void)t.to(1); }, "tensor::to");
  says([&] { (void)t.to(float64); }, "tensor::to");
  says([&] { (void)t.clone(); }, "tensor::clone");
  says([&] { (void)matrix.t().contiguous(); }, "tensor::t");
  says([&] { (void)matrix.slice(0, 0, 1).slice(1, 0, 1).item<float>(); }, "tensor::slice");
  says([&] { (void)t.peer_view(1); }, "tensor::peer_view");
  says([&] { (void)t.new_zeros({2}); }, "tensor::new_zeros");
  says([&] { (void)empty_like(t); }, "empty_like");
  says([&] { (void)rand_like(t); }, "rand_like");
  says([&] { t.normal_(); }, "tensor::normal_");
  says([&] { (void)tensor::from_buffer(std::move(b), {4}, float32); }, "tensor::from_buffer");
  says([&] { (void)locked.gpu(); }, "tensor::to");
  says([&] { (void)locked.clone(); }, "tensor::clone");
  EXPECT_THROW(t.record_stream(current_stream()), invalid_use);
  EXPECT_EQ(locked.host<float>()[2], 5) << "pages that are held stay";
  EXPECT_EQ(t.shape(), (shape{2, 3}));
  expect_refusal([&] { buckets->mark_ready(0, current_stream()); },
                 {"gradient_buckets::mark_ready", "the communicator's runtime has ended"});
  expect_refusal([&] { buckets->finish(current_stream()); },
                 {"gradient_buckets::finish", "the communicator's runtime has ended"});
  EXPECT_THROW((void)rank->all_reduce({other.data(), 6, float32}), invalid_use);
}

TEST(tensor_refused, too_large_tensors_are_out_of_memory) {
  weir::runtime machine{simulated{.devices = 1, .memory = size_t{1} << 26}};
  runtime_guard const chosen{machine};
  tensor const small = ones({1 << 20});
  EXPECT_THROW((void)empty({std::int64_t{1} << 25}), out_of_memory);
  EXPECT_THROW((void)matmul(ones({1 << 20, 1}), ones({1, 1 << 10})), out_of_memory);
  EXPECT_EQ(sum(small).item<float>(), 1 << 20);
  EXPECT_EQ(memory_allocated(), small.nbytes());
}

TEST(tensor_refused, tensors_of_a_lost_device_end_quietly) {
  weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 26}};
  runtime_guard const chosen{machine};
  {
    tensor lost = ones({1000}, {.on = 0}), other = ones({1000}, {.on = 1});
    simulation::of(machine).lose_device(0);
    EXPECT_THROW(lost.mul_(2), device_lost);
    EXPECT_THROW((void)lost.cpu(), device_lost);
    EXPECT_THROW(other.copy_(lost), device_lost);
    EXPECT_EQ(sum(other.mul_(2)).item<float>(), 2000);
  }
  EXPECT_EQ(memory_allocated(1), 0u);
}

}  // namespace
