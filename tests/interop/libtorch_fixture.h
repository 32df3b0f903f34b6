// Ranks that train modules of LibTorch: a thread a rank, on simulated devices. Tensors are of double, so that ranks
// agree with one rank to about twelve digits.
// Threads: as each says.
#pragma once
#include "weir/libtorch.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <string>

#include "tests/peer/ranks.h"

namespace weir::test {

using libtorch::data_parallel;

inline constexpr double tolerance = 1e-9;

class libtorch_ranks : public testing::Test {
 protected:
  libtorch_ranks() {
    torch::set_num_threads(1);
    torch::manual_seed(7);
  }
  // Runs body(communicator) on a thread of each of n ranks.
  template <class Body>
  void on_ranks(int n, Body body) {
    auto ranks = communicator::create_all(first_devices(n));
    on_each(machine_, ranks, body);
  }
  runtime machine_{simulated{.devices = 4, .memory = 64_MiB}};
  runtime_guard in_{machine_};
};

inline at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  at::Tensor const t = torch::arange(c10::multiply_integers(sizes), torch::kDouble).reshape(sizes);
  return torch::sin(t * 0.7 + seed);
}
inline at::Tensor part(at::Tensor const& batch, communicator const& c) {
  return batch.chunk(c.size())[static_cast<std::size_t>(c.rank())];
}
inline void expect_near(at::Tensor const& a, at::Tensor const& b, std::string const& what) {
  ASSERT_TRUE(a.defined() && b.defined()) << what;
  EXPECT_LT((a - b).abs().max().item<double>(), tolerance) << what;
}
inline void expect_alike(torch::nn::Module const& a, torch::nn::Module const& b, std::string const& what) {
  auto const other = b.named_parameters();
  for (auto const& p : a.named_parameters())
    expect_near(p.value(), other[p.key()], what + ": " + p.key());
}
// Gives the parameters and buffers of `from` to `to`, which has the same.
inline void take_over(torch::nn::Module& to, torch::nn::Module const& from) {
  torch::NoGradGuard const no_grad;
  auto const parameters = from.named_parameters(), buffers = from.named_buffers();
  for (auto& p : to.named_parameters())
    p.value().copy_(parameters[p.key()]);
  for (auto& b : to.named_buffers())
    b.value().copy_(buffers[b.key()]);
}

struct two_layers : torch::nn::Module {
  two_layers() { to(torch::kDouble); }
  at::Tensor forward(at::Tensor const& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};
// The net with the gradients that one rank gets of the batch.
inline std::shared_ptr<two_layers> with_gradients(at::Tensor const& batch, two_layers const& begin = {}) {
  auto const whole = std::make_shared<two_layers>();
  take_over(*whole, begin);
  whole->forward(batch).square().mean().backward();
  return whole;
}
inline void expect_gradients(two_layers const& got, two_layers const& wanted, std::string const& what) {
  auto const w = wanted.named_parameters();
  for (auto const& p : got.named_parameters())
    expect_near(p.value().grad(), w[p.key()].grad(), what + ": " + p.key());
}

inline at::Tensor loss_of(at::Tensor const& y, int step) {
  return (y - 0.1 * step).square().mean();
}
inline std::unique_ptr<torch::optim::Optimizer> optimizer_of(torch::nn::Module& m, bool adam) {
  if (adam)
    return std::make_unique<torch::optim::Adam>(m.parameters(), torch::optim::AdamOptions(0.01));
  return std::make_unique<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

}  // namespace weir::test
