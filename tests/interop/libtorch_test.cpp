// Data-parallel training of LibTorch's modules: a thread a rank, on simulated devices. Tensors are of double, so that
// ranks agree with one rank to about twelve digits.
#include "weir/libtorch.h"
#include "weir/libtorch_norm.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include "tests/peer/ranks.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;
using libtorch::data_parallel;

constexpr double close = 1e-9;

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

at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  at::Tensor const t = torch::arange(c10::multiply_integers(sizes), torch::kDouble).reshape(sizes);
  return torch::sin(t * 0.7 + seed);
}
at::Tensor part(at::Tensor const& batch, communicator const& c) {
  return batch.chunk(c.size())[static_cast<std::size_t>(c.rank())];
}
void expect_near(at::Tensor const& a, at::Tensor const& b, std::string const& what) {
  ASSERT_TRUE(a.defined() && b.defined()) << what;
  EXPECT_LT((a - b).abs().max().item<double>(), close) << what;
}
void expect_alike(torch::nn::Module const& a, torch::nn::Module const& b, std::string const& what) {
  auto const other = b.named_parameters();
  for (auto const& p : a.named_parameters())
    expect_near(p.value(), other[p.key()], what + ": " + p.key());
}
// Gives the parameters and buffers of `from` to `to`, which has the same.
void take_over(torch::nn::Module& to, torch::nn::Module const& from) {
  torch::NoGradGuard const no_grad;
  auto const parameters = from.named_parameters(), buffers = from.named_buffers();
  for (auto& p : to.named_parameters())
    p.value().copy_(parameters[p.key()]);
  for (auto& b : to.named_buffers())
    b.value().copy_(buffers[b.key()]);
}

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
at::Tensor loss_of(at::Tensor const& y, int step) {
  return (y - 0.1 * step).square().mean();
}
std::unique_ptr<torch::optim::Optimizer> optimizer_of(torch::nn::Module& m, bool adam) {
  if (adam)
    return std::make_unique<torch::optim::Adam>(m.parameters(), torch::optim::AdamOptions(0.01));
  return std::make_unique<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

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
        EXPECT_NEAR(sum.item<double>(), losses[static_cast<std::size_t>(step)], close) << "step " << step;
      }
      expect_alike(*net, whole, "rank " + std::to_string(c.rank()));
      for (char const* const buffer : {"running_mean", "running_var"})
        expect_near(net->together->named_buffers()[buffer], whole.alone->named_buffers()[buffer], buffer);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(optimizers, libtorch_training, testing::Bool());

struct two_layers : torch::nn::Module {
  two_layers() { to(torch::kDouble); }
  at::Tensor forward(at::Tensor const& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};
// The net with the gradients that one rank gets of the batch.
std::shared_ptr<two_layers> with_gradients(at::Tensor const& batch, two_layers const& begin = {}) {
  auto const whole = std::make_shared<two_layers>();
  take_over(*whole, begin);
  whole->forward(batch).square().mean().backward();
  return whole;
}
void expect_gradients(two_layers const& got, two_layers const& wanted, std::string const& what) {
  auto const w = wanted.named_parameters();
  for (auto const& p : got.named_parameters())
    expect_near(p.value().grad(), w[p.key()].grad(), what + ": " + p.key());
}

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

TEST_F(libtorch_ranks, gradients_set_to_none_are_reduced_again) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    data_parallel all(net, c);
    for (int step = 0; step < 6; ++step) {
      if (step == 1)
        all.zero_grad();
      else if (step == 2)
        net->zero_grad(false);
      else
        for (at::Tensor const& p : net->parameters())
          p.mutable_grad() = step == 3 ? torch::full_like(p, 0) : at::Tensor();
      all.forward(part(batch, c)).square().mean().backward();
      expect_gradients(*net, *whole, "step " + std::to_string(step));
    }
  });
}

// As with one rank: each pass adds its mean.
TEST_F(libtorch_ranks, a_second_pass_over_a_kept_graph_adds) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    data_parallel all(net, c);
    at::Tensor const loss = all.forward(part(batch, c)).square().mean() / 2;
    loss.backward({}, true);
    loss.backward();
    expect_gradients(*net, *whole, "twice the half");
  });
}

// Rank r uses branch r alone, and no rank the last one.
struct branches : torch::nn::Module {
  branches() {
    for (int i = 0; i < 3; ++i)
      all.push_back(register_module("branch" + std::to_string(i), torch::nn::Linear(5, 2)));
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor const& x, std::size_t which) { return all[which](x); }
  std::vector<torch::nn::Linear> all;
};

TEST_F(libtorch_ranks, parameters_left_out_are_named) {
  std::atomic<int> named = 0;
  on_ranks(2, [&](communicator& c) {
    data_parallel all(std::make_shared<branches>(), c);
    std::string const text = refusal<invalid_use>([&] {
      all.forward(numbers({2, 5}, 0), static_cast<std::size_t>(c.rank())).sum().backward();
    });
    EXPECT_NE(text.find("4 of 6"), std::string::npos) << text;
    EXPECT_NE(text.find("\"branch2.weight\", \"branch2.bias\""), std::string::npos) << text;
    EXPECT_NE(refusal<invalid_use>([&] { all.forward(numbers({2, 5}, 0), 0); }).find("did not end"), std::string::npos);
    ++named;
    c.barrier();
  });
  EXPECT_EQ(named, 2);
}

TEST_F(libtorch_ranks, parameters_left_out_are_tolerated) {
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<branches>();
    data_parallel all(net, c, {.find_unused = true});
    at::Tensor const x = numbers({2, 5}, c.rank());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(step == 1);
      all.forward(x, static_cast<std::size_t>(c.rank())).sum().backward();
      for (int branch = 0; branch < 2; ++branch)  // a mean of its rank's gradient and of zeros
        expect_near(net->all[static_cast<std::size_t>(branch)]->weight.grad()[0], numbers({2, 5}, branch).sum(0) / 2,
                    "branch " + std::to_string(branch));
      EXPECT_FALSE(net->all[2]->weight.grad().defined());
    }
  });
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

TEST_F(libtorch_ranks, batch_norm_is_that_of_the_whole_batch) {
  torch::nn::BatchNorm1d whole(torch::nn::BatchNormOptions(3).momentum(c10::nullopt));
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

// The second rank would wait in its reductions.
TEST_F(libtorch_ranks, an_exception_in_forward_frees_the_others) {
  std::atomic<int> freed = 0;
  auto ranks = communicator::create_all(first_devices(2));
  auto const step = [&](communicator& c) {
    data_parallel all(std::make_shared<two_layers>(), c);
    all.forward(numbers({2, c.rank() == 0 ? 4 : 5}, 0)).sum().backward();
  };
  std::vector<std::thread> threads;
  for (communicator& c : ranks)
    threads.emplace_back([&] {
      runtime_guard const in(machine_);
      device_guard const on(c.device());
      try {
        step(c);
      } catch (std::exception const& e) {
        EXPECT_NE(c.rank() == 1 ? c.failure() : std::string(e.what()), "");
        ++freed;
      }
    });
  for (std::thread& t : threads)
    t.join();
  EXPECT_EQ(freed, 2);
}

// The first layer's gradient comes last.
TEST_F(libtorch_ranks, reductions_start_before_backward_ends) {
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    int started = 0, started_at_first_layer = -1;
    libtorch::data_parallel_options o;
    o.buckets.bucket_bytes = 1;
    o.buckets.before_reduction = [&](device_span, stream_ref) { ++started; };
    data_parallel all(net, c, o);
    at::Tensor const x = numbers({2, 5}, 0).requires_grad_();
    net->first->weight.register_hook([&](at::Tensor const& g) {
      started_at_first_layer = started;
      return g;
    });
    all.forward(x).sum().backward();
    EXPECT_EQ(started, 4);
    EXPECT_GE(started_at_first_layer, 2);  // of the second layer
  });
}

struct sparse_net : torch::nn::Module {
  sparse_net() { to(torch::kDouble); }
  at::Tensor forward(at::Tensor const& words) { return table(words); }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
};
TEST_F(libtorch_ranks, sparse_gradients_become_dense) {
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<sparse_net>();
    data_parallel all(net, c);
    for (bool const to_none : {false, true}) {
      if (to_none)
        net->table->weight.mutable_grad() = at::Tensor();
      all.forward(torch::tensor({c.rank(), 4, 4}, torch::kLong)).sum().backward();
      at::Tensor const sum = net->table->weight.grad().sum(1);
      expect_near(sum, torch::tensor({1, 1, 0, 0, 4, 0}, torch::kDouble), to_none ? "none" : "zeros");
      net->zero_grad();
    }
  });
}

// The error of a hook comes out of backward().
TEST_F(libtorch_ranks, a_pass_that_creates_a_graph_is_refused) {
  on_ranks(2, [&](communicator& c) {
    data_parallel all(std::make_shared<two_layers>(), c);
    at::Tensor const loss = all.forward(numbers({2, 5}, 0)).square().sum();
    std::string const text = refusal<not_supported>([&] { loss.backward({}, true, true); });
    EXPECT_NE(text.find("create_graph, at \"second."), std::string::npos) << text;
  });
}

TEST_F(libtorch_ranks, unlike_modules_are_refused) {
  std::atomic<int> refused = 0;
  on_ranks(2, [&](communicator& c) {
    torch::nn::Linear net(3, c.rank() + 2);
    if (!refusal<invalid_use>([&] { data_parallel all(net, c); }).empty())
      ++refused;
  });
  EXPECT_EQ(refused, 2);
}

TEST_F(libtorch_ranks, unlike_types_and_integers_are_refused) {
  on_ranks(1, [&](communicator& c) {
    struct of_complex : torch::nn::Module {
      at::Tensor p = register_parameter("p", torch::zeros({2}, torch::kComplexFloat));
    };
    std::string const text = refusal<not_supported>([&] { data_parallel all(std::make_shared<of_complex>(), c); });
    EXPECT_NE(text.find("parameter \"p\" of ComplexFloat"), std::string::npos) << text;
  });
}

// Rank 0's statistics, at each forward in training.
TEST_F(libtorch_ranks, buffers_are_those_of_the_first_rank) {
  on_ranks(2, [&](communicator& c) {
    torch::nn::BatchNorm1d norm(2);
    data_parallel all(norm, c);
    all.forward(torch::full({4, 2}, c.rank() * 10.0 + 10)).sum().backward();
    EXPECT_NEAR(norm->running_mean[0].item<double>(), 1 + c.rank(), 1e-6);
    all.forward(torch::zeros({4, 2})).sum().backward();
    EXPECT_NEAR(norm->running_mean[0].item<double>(), 0.9, 1e-6);
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 2);
    norm->eval();
    if (c.rank() == 0)
      (void)all.forward(torch::zeros({4, 2}));  // alone
  });
}

// A parameter in channels_last, one without elements, and one that has no gradient.
TEST_F(libtorch_ranks, gradients_keep_the_layout_of_parameters) {
  struct odd : torch::nn::Module {
    at::Tensor forward() { return (a * numbers({2, 3, 4, 5}, 2)).sum() + none.sum() + fixed.sum(); }
    at::Tensor a =
        register_parameter("a", torch::ones({2, 3, 4, 5}, torch::kDouble).contiguous(at::MemoryFormat::ChannelsLast));
    at::Tensor none = register_parameter("none", torch::ones({0, 3}));
    at::Tensor fixed = register_parameter("fixed", torch::ones({3}), false);
  };
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<odd>();
    data_parallel all(net, c, {.buckets = {.average = false}});
    for (int step = 0; step < 2; ++step) {
      all.forward().backward();
      expect_near(net->a.grad(), numbers({2, 3, 4, 5}, 2) * 2, "a");
      EXPECT_EQ(net->a.grad().strides(), net->a.strides());
      net->zero_grad(true);
    }
  });
}

TEST_F(libtorch_ranks, gradients_reduced_as_bfloat16_come_back) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    data_parallel all(net, c, {.buckets = {.reduce_as = bfloat16}});
    all.forward(part(batch, c)).square().mean().backward();
    at::Tensor const got = net->first->weight.grad(), wanted = whole->first->weight.grad();
    EXPECT_LT((got - wanted).abs().max().item<double>(), 0.02 * wanted.abs().max().item<double>());
    EXPECT_TRUE(torch::equal(got, got.to(torch::kBFloat16).to(torch::kDouble)));
  });
}

// Afterwards the module is one as any, and its gradients stay readable.
TEST_F(libtorch_ranks, a_module_outlives_its_data_parallel) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    {
      data_parallel all(net, c);
      all.forward(part(batch, c)).square().mean().backward();
    }
    expect_gradients(*net, *whole, "after the end");
    net->zero_grad();
    if (c.rank() == 0) {
      net->forward(batch).square().mean().backward();
      expect_gradients(*net, *whole, "alone");
    }
  });
}

// LibTorch's streams on GPUs are borrowed ones: they come before a stream of weir, and behind it.
TEST_F(libtorch_ranks, borrowed_streams_are_ordered_with_own_ones) {
  simulated_stream const theirs(device(0));
  auto const here = [&] { return borrow_stream(device(0), theirs.handle()); };
  buffer memory(64_KiB);
  here().wait(current_stream());
  stream const own;
  for (int step = 0; step < 20; ++step) {
    fill(here(), memory.data(), static_cast<std::byte>(step), memory.size());
    own.wait(here());
    std::vector<std::byte> got(memory.size());
    copy(own, got.data(), memory.data(), got.size(), non_blocking);
    here().wait(own.ref());
    fill(here(), memory.data(), std::byte{99}, memory.size());
    own.synchronize();
    EXPECT_EQ(got, std::vector<std::byte>(memory.size(), static_cast<std::byte>(step)));
  }
  here().synchronize();
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
