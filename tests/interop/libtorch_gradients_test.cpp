// Where gradients lie, which passes reduce them, and what is refused.
#include <torch/autograd.h>
#include "tests/interop/libtorch_fixture.h"

#include <barrier>

#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

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

// What was summed over the ranks is not summed again.
TEST_F(libtorch_ranks, sums_of_several_steps_add) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    for (bool const find_unused : {false, true}) {
      auto const net = std::make_shared<two_layers>();
      take_over(*net, *whole);
      data_parallel all(net, c, {.buckets = {.average = false}, .find_unused = find_unused});
      for (int step = 0; step < 3; ++step) {
        if (step == 2) {
          auto const alone = all.no_sync();
          (all.forward(part(batch, c)).square().mean() / 12).backward();
        }
        (all.forward(part(batch, c)).square().mean() / (step == 2 ? 12 : 6)).backward();
      }
      expect_gradients(*net, *whole, "three sixths of two ranks");
      net->zero_grad(find_unused);
      (all.forward(part(batch, c)).square().mean() / 2).backward();
      expect_gradients(*net, *whole, "after zero_grad");
      at::Tensor const other = net->first->weight.grad().clone();
      if (find_unused) {  // a step that leaves the first layer out keeps its sum
        net->second(numbers({1, 7}, 1)).sum().backward();
        expect_near(net->first->weight.grad(), other, "left out");
      }
    }
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
  std::barrier made(2);  // the first error ends the other rank's constructor, too
  on_ranks(2, [&](communicator& c) {
    data_parallel all(std::make_shared<branches>(), c);
    made.arrive_and_wait();
    std::string const text = refusal<invalid_use>([&] {
      all.forward(numbers({2, 5}, 0), static_cast<std::size_t>(c.rank())).sum().backward();
    });
    EXPECT_NE(text.find("4 of 6"), std::string::npos) << text;
    EXPECT_NE(text.find("\"branch2.weight\", \"branch2.bias\""), std::string::npos) << text;
    EXPECT_NE(refusal<invalid_use>([&] { all.forward(numbers({2, 5}, 0), 0); }).find("did not end"), std::string::npos);
    ++named;
  });
  EXPECT_EQ(named, 2);
}

TEST_F(libtorch_ranks, parameters_left_out_by_one_free_the_others) {
  std::atomic<int> freed = 0;
  std::barrier made(2);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    data_parallel all(net, c);
    made.arrive_and_wait();
    at::Tensor y = all.forward(numbers({2, 5}, 0));
    if (c.rank() == 0)
      y = y.detach() + net->second->bias;
    if (!refusal<error>([&] { y.sum().backward(); }).empty())
      ++freed;
  });
  EXPECT_EQ(freed, 2);
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

// Rank 0 used its branch in the first step, and sits the second one out.
TEST_F(libtorch_ranks, a_rank_that_sits_out_has_no_gradients) {
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<branches>();
    data_parallel all(net, c, {.find_unused = true});
    all.forward(numbers({2, 5}, 0), static_cast<std::size_t>(c.rank())).sum().backward();
    net->zero_grad(true);
    if (c.rank() == 0)
      all.sit_out();
    else
      all.forward(numbers({2, 5}, 0), 1).sum().backward();
    EXPECT_FALSE(net->all[0]->weight.grad().defined());
    EXPECT_TRUE(net->all[1]->weight.grad().defined());
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

// Equal places in the gradients would be of unlike elements.
TEST_F(libtorch_ranks, unlike_strides_are_refused) {
  std::atomic<int> refused = 0;
  on_ranks(2, [&](communicator& c) {
    torch::nn::Conv2d net(2, 3, 3);
    if (c.rank() == 1)
      net->weight.set_data(net->weight.contiguous(at::MemoryFormat::ChannelsLast));
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

// The second rank would wait for the first one's parameters.
TEST_F(libtorch_ranks, a_refused_module_frees_the_others) {
  std::atomic<int> refused = 0;
  on_ranks(2, [&](communicator& c) {
    torch::nn::Linear net(3, 2);
    if (c.rank() == 0)
      net->to(torch::kComplexFloat);
    if (!refusal<error>([&] { data_parallel all(net, c); }).empty())
      ++refused;
  });
  EXPECT_EQ(refused, 2);
}

// No rank would reduce it.
TEST_F(libtorch_ranks, a_parameter_frozen_at_first_is_refused) {
  on_ranks(1, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    net->first->bias.set_requires_grad(false);
    data_parallel all(net, c);
    all.forward(numbers({2, 5}, 0)).sum().backward();
    net->first->bias.set_requires_grad(true);
    std::string const text = refusal<invalid_use>([&] { all.forward(numbers({2, 5}, 0)); });
    EXPECT_NE(text.find("\"first.bias\" requires a gradient"), std::string::npos) << text;
  });
}

// Computes the second layer anew in the backward pass, in a backward pass of its own.
struct recomputed : torch::autograd::Function<recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* its, at::Tensor const& x, std::int64_t net) {
    its->save_for_backward({x});
    its->saved_data["net"] = net;
    return reinterpret_cast<two_layers*>(net)->second(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* its,
                                                 torch::autograd::variable_list const& gradients) {
    torch::AutoGradMode const on(true);
    at::Tensor const x = its->get_saved_variables()[0].detach().requires_grad_();
    reinterpret_cast<two_layers*>(its->saved_data["net"].toInt())->second(x).backward(gradients[0]);
    return {x.grad(), {}};
  }
};
struct thrifty : two_layers {
  at::Tensor forward(at::Tensor const& x) {
    return recomputed::apply(torch::tanh(first(x)), reinterpret_cast<std::int64_t>(static_cast<two_layers*>(this)));
  }
};
TEST_F(libtorch_ranks, a_pass_inside_a_pass_reduces_all) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  for (bool const find_unused : {false, true}) {
    on_ranks(2, [&](communicator& c) {
      auto const net = std::make_shared<thrifty>();
      take_over(*net, *whole);
      data_parallel all(net, c, {.find_unused = find_unused});
      for (int step = 0; step < 3; ++step) {
        net->zero_grad(step == 1);
        all.forward(part(batch, c)).square().mean().backward();
        expect_gradients(*net, *whole, "step " + std::to_string(step));
      }
    });
  }
}

// In turn a rank computes the second layer anew, and the other one does not. Both make one step.
struct thrifty_at_times : thrifty {
  std::tuple<std::vector<at::Tensor>, int> forward(at::Tensor const& x, bool thrifts) {
    return {{thrifts ? thrifty::forward(x) : two_layers::forward(x)}, 0};
  }
};
TEST_F(libtorch_ranks, passes_inside_passes_are_one_step) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<thrifty_at_times>();
    take_over(*net, *whole);
    data_parallel all(net, c, {.find_unused = true});
    for (int step = 0; step < 4; ++step) {
      all.zero_grad();
      auto const y = std::get<0>(all.forward(part(batch, c), (step + c.rank()) % 2 == 0));
      y[0].square().mean().backward();
      expect_gradients(*net, *whole, "step " + std::to_string(step));
    }
  });
}

struct thrifty_twice : thrifty {
  at::Tensor forward(at::Tensor const& x) { return thrifty::forward(x) + two_layers::forward(x); }
};
TEST_F(libtorch_ranks, a_parameter_in_both_passes_needs_find_unused) {
  at::Tensor const batch = numbers({4, 5}, 1);
  two_layers whole;
  (whole.forward(batch) * 2).square().mean().backward();
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<thrifty_twice>();
    take_over(*net, whole);
    data_parallel all(net, c, {.find_unused = true});
    all.forward(part(batch, c)).square().mean().backward();
    expect_gradients(*net, whole, "both");
  });
  on_ranks(1, [&](communicator& c) {
    data_parallel all(std::make_shared<thrifty_twice>(), c);
    at::Tensor const loss = all.forward(batch).sum();
    std::string const text = refusal<not_supported>([&] { loss.backward(); });
    EXPECT_NE(text.find("a second gradient of \"second."), std::string::npos) << text;
  });
}

// The hook of the output ran, and no gradient came.
TEST_F(libtorch_ranks, a_pass_that_ends_early_leaves_the_next_whole) {
  at::Tensor const batch = numbers({4, 5}, 1);
  auto const whole = with_gradients(batch);
  on_ranks(2, [&](communicator& c) {
    auto const net = std::make_shared<two_layers>();
    take_over(*net, *whole);
    data_parallel all(net, c);
    at::Tensor y = all.forward(part(batch, c));
    (void)torch::autograd::grad({y.sum()}, {net->second->bias}, {}, true);
    y.register_hook([](at::Tensor const&) { throw std::runtime_error("of the program"); });
    EXPECT_THROW(y.sum().backward(), std::runtime_error);
    all.forward(part(batch, c)).square().mean().backward();
    expect_gradients(*net, *whole, "the next one");
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

TEST_F(libtorch_ranks, buffers_come_from_a_rank_with_a_batch) {
  on_ranks(2, [&](communicator& c) {
    torch::nn::BatchNorm1d norm(2);
    data_parallel all(norm, c);
    all.forward(torch::full({4, 2}, c.rank() * 10.0 + 10)).sum().backward();
    ASSERT_TRUE(all.any_has(c.rank() == 1));
    if (c.rank() == 1)
      all.forward(torch::zeros({4, 2})).sum().backward();
    else
      all.sit_out();
    EXPECT_NEAR(norm->running_mean[0].item<double>(), c.rank() == 1 ? 1.8 : 2, 1e-6);
    EXPECT_TRUE(norm->weight.grad().defined());
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
    // A graph that the program keeps keeps the node, too.
    auto const kept = torch::autograd::impl::grad_accumulator(net->first->weight);
    {
      data_parallel all(net, c);
      all.forward(part(batch, c)).square().mean().backward();
      EXPECT_EQ(kept->post_hooks().size(), 1u);
    }
    expect_gradients(*net, *whole, "after the end");
    EXPECT_TRUE(kept->post_hooks().empty());
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

}  // namespace