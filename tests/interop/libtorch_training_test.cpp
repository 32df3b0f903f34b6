// Training of LibTorch's modules on several ranks equals that of one rank over all batches.
#include "tests/interop/libtorch_fixture.h"
#include "weir/libtorch_norm.h"
#include "weir/observe.h"

namespace {

using namespace weir;
using namespace weir::test;

// The last layer has the weight of the middle one. The convolution has no bias: its gradient would be zero but for
// rounding, which Adam divides by itself.
struct image_net : torch::nn::Module {
  explicit image_net(communicator* c) {
    torch::nn::BatchNormOptions const of_norm(3);
    if (c)
      together =
          register_module("norm", std::make_shared<libtorch::synchronized<torch::nn::BatchNorm2dImpl>>(*c, of_norm));
    else
      alone = register_module("norm", torch::nn::BatchNorm2d(of_norm));
    register_parameter("tied", middle->weight);
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    x = conv(x);
    x = torch::tanh(together ? together->forward(x) : alone(x)).flatten(1);
    return torch::tanh(middle(x)).matmul(middle->weight);
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).bias(false)));
  torch::nn::BatchNorm2d alone{nullptr};
  std::shared_ptr<libtorch::synchronized<torch::nn::BatchNorm2dImpl>> together;
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(27, 4));
};
// Convolution, batch norm, linear layers and tied weights. Ranks but the first begin with other numbers.
class libtorch_training : public libtorch_ranks, public testing::WithParamInterface<bool> {};
TEST_P(libtorch_training, is_that_of_one_rank) {
  bool const adam = GetParam();
  for (int const n : {2, 4}) {
    image_net whole(nullptr);
    auto const begin = std::make_shared<image_net>(nullptr);
    take_over(*begin, whole);
    std::vector<double> losses;
    auto const optimizer = optimizer_of(whole, adam);
    for (int step = 0; step < 20; ++step) {
      optimizer->zero_grad();
      at::Tensor const loss = loss_of(whole.forward(numbers({8, 1, 5, 5}, step)), step);
      loss.backward();
      optimizer->step();
      losses.push_back(loss.item<double>());
    }
    on_ranks(n, [&](communicator& c) {
      communicator of_norms = std::move(*c.split(0));
      auto const net = std::make_shared<image_net>(&of_norms);
      if (c.rank() == 0)
        take_over(*net, *begin);
      data_parallel all(net, c, {.buckets = {.bucket_bytes = 600}});
      auto const own = optimizer_of(*net, adam);
      for (int step = 0; step < 20; ++step) {
        own->zero_grad();
        at::Tensor const loss = loss_of(all.forward(part(numbers({8, 1, 5, 5}, step), c)), step);
        loss.backward();
        own->step();
        at::Tensor const sum = loss.detach().clone().view({1});
        libtorch::detail::all_reduce({&machine_, c.device()}, c, sum, float64, reduce_op::average);
        EXPECT_NEAR(sum.item<double>(), losses[static_cast<std::size_t>(step)], tolerance) << "step " << step;
      }
      expect_alike(*net, whole, "rank " + std::to_string(c.rank()));
      for (char const* const buffer : {"running_mean", "running_var"})
        expect_near(net->together->named_buffers()[buffer], whole.alone->named_buffers()[buffer], buffer);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(optimizers, libtorch_training, testing::Bool());

TEST_F(libtorch_ranks, passes_without_sync_make_the_large_batch) {
  at::Tensor const batch = numbers({12, 5}, 3);
  auto const whole = with_gradients(batch);
  for (bool const to_none : {false, true}) {
    on_ranks(2, [&](communicator& c) {
      auto const net = std::make_shared<two_layers>();
      take_over(*net, *whole);
      data_parallel all(net, c);
      net->zero_grad(to_none);
      if (to_none)
        net->second->weight.mutable_grad() = at::Tensor();
      auto const parts = part(batch, c).chunk(3);
      {
        auto const alone = all.no_sync();
        for (int i = 0; i < 2; ++i)
          (all.forward(parts[static_cast<std::size_t>(i)]).square().mean() / 3).backward();
        two_layers own;
        take_over(own, *whole);
        for (int i = 0; i < 2; ++i)
          (own.forward(parts[static_cast<std::size_t>(i)]).square().mean() / 3).backward();
        expect_gradients(*net, own, "of this rank");
      }
      (all.forward(parts[2]).square().mean() / 3).backward();
      expect_gradients(*net, *whole, to_none ? "none" : "zeros");
    });
  }
}

// Rank 0 has three batches, rank 1 five. Both step their optimizers five times.
TEST_F(libtorch_ranks, with_three_and_five_batches_stay_alike) {
  auto const begin = std::make_shared<two_layers>();
  two_layers whole;
  take_over(whole, *begin);
  auto const optimizer = optimizer_of(whole, true);
  for (int step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    at::Tensor batch = numbers({4, 5}, step);
    batch = step < 3 ? batch : batch.chunk(2)[1];
    whole.forward(batch).square().mean().backward();
    optimizer->step();
  }
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *begin);
    data_parallel all(net, c);
    auto const own = optimizer_of(*net, true);
    int const batches = c.rank() == 0 ? 3 : 5;
    int step = 0;
    for (; all.any_has(step < batches); ++step) {
      own->zero_grad();
      if (step < batches)
        all.forward(part(numbers({4, 5}, step), c)).square().mean().backward();
      else
        all.sit_out();
      own->step();
    }
    EXPECT_EQ(step, 5);
    expect_alike(*net, whole, "rank " + std::to_string(c.rank()));
    take_over(*net, *begin);
    all.zero_grad();  // a pass of all ranks, once the batches are over
    all.forward(part(numbers({4, 5}, 0), c)).square().mean().backward();
    expect_gradients(*net, *with_gradients(numbers({4, 5}, 0), *begin), "afterwards");
  });
}

// Later steps are again of all ranks.
TEST_F(libtorch_ranks, a_loop_left_early_leaves_the_next_step_whole) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    data_parallel all(net, c);
    ASSERT_TRUE(all.any_has(c.rank() == 0));
    if (c.rank() == 0)
      all.forward(part(batch, c)).square().mean().backward();
    else
      all.sit_out();
    all.zero_grad();
    all.forward(part(batch, c)).square().mean().backward();
    expect_gradients(*net, *whole, "the next step");
  });
}

TEST_F(libtorch_ranks, a_frozen_module_sits_out) {
  on_ranks(1, [&](communicator& c) {
    torch::nn::Linear net(3, 2);
    for (at::Tensor const& p : net->parameters())
      p.set_requires_grad(false);
    data_parallel all(net, c);
    all.sit_out();
    EXPECT_FALSE(all.any_has(false));
  });
}

TEST_F(libtorch_ranks, batch_norm_is_that_of_the_whole_batch) {
  torch::nn::BatchNormOptions o(3);
  o.momentum() = std::decay_t<decltype(o.momentum())>();  // none: the mean of all batches
  torch::nn::BatchNorm1d whole(o);
  whole->to(torch::kDouble);
  at::Tensor const batch = (numbers({10, 3, 2}, 5) + 1e3).requires_grad_();
  at::Tensor const wanted = whole(batch);
  (wanted * numbers({10, 3, 2}, 8)).sum().backward();
  on_ranks(2, [&](communicator& c) {
    torch::nn::BatchNorm1d norm(whole->options);
    norm->to(torch::kDouble);
    std::int64_t const from = c.rank() * 4, count = c.rank() == 0 ? 4 : 6;  // unlike parts
    at::Tensor const x = batch.detach().narrow(0, from, count).clone().requires_grad_();
    at::Tensor const y = libtorch::batch_norm(c, *norm, x);
    expect_near(y, wanted.detach().narrow(0, from, count), "result");
    (y * numbers({10, 3, 2}, 8).narrow(0, from, count)).sum().backward();
    expect_near(x.grad(), batch.grad().narrow(0, from, count), "gradient");
    for (at::Tensor const& g : {norm->weight.grad(), norm->bias.grad()})
      libtorch::detail::all_reduce({&machine_, c.device()}, c, g, float64, reduce_op::sum);
    expect_near(norm->weight.grad(), whole->weight.grad(), "weight");
    expect_near(norm->bias.grad(), whole->bias.grad(), "bias");
    expect_near(norm->running_mean, whole->running_mean, "running_mean");
    expect_near(norm->running_var, whole->running_var, "running_var");
    norm->eval();
    expect_near(libtorch::batch_norm(c, *norm, x), norm(x), "evaluation");
  });
}

TEST_F(libtorch_ranks, batch_norm_of_other_channels_is_refused) {
  on_ranks(1, [&](communicator& c) {
    torch::nn::BatchNorm1d norm(3);
    std::string const text = refusal<invalid_use>([&] { (void)libtorch::batch_norm(c, *norm, torch::ones({4, 1})); });
    EXPECT_NE(text.find("1 channels, and the norm is of 3"), std::string::npos) << text;
  });
}

// The checker closes the pages of simulated devices to the host.
TEST(libtorch_checked, a_training_has_no_races) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB}, {.check_races = true});
  runtime_guard const in(machine);
  auto ranks = communicator::create_all(first_devices(2));
  on_each(machine, ranks, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    data_parallel all(net, c, {.find_unused = true});
    auto const own = optimizer_of(*net, false);
    for (int step = 0; step < 3; ++step) {
      own->zero_grad();
      all.forward(part(numbers({4, 5}, step), c)).square().mean().backward();
      own->step();
    }
  });
  require_no_races();
}

}  // namespace
