// weir/libtorch_norm.h: batch norms of LibTorch over the batches of all ranks.
// Threads: as the communicator. Autograd's threads call it while a thread is in backward().
#pragma once
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "weir/libtorch_ranks.h"

namespace weir::libtorch {
namespace detail {

// (x - mean) / sqrt(variance + eps) by channel, of the numbers of all ranks.
struct normalized : torch::autograd::Function<normalized> {
  // of a channel: the ranks' counts, means and sums of squared distances from the mean become those of all numbers
  struct statistics {
    at::Tensor count, mean, squares;
  };
  static std::vector<std::int64_t> all_but_channels(at::Tensor const& x) {
    std::vector<std::int64_t> d;
    for (std::int64_t i = 0; i < x.dim(); ++i)
      if (i != 1)
        d.push_back(i);
    return d;
  }
  static at::Tensor along_channels(at::Tensor const& per_channel, at::Tensor const& x) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
    shape[1] = -1;
    return per_channel.view(shape);
  }
  // Sums of squares lose digits where the mean is large, so ranks exchange what Chan's formula needs.
  static statistics of_all(place const& p, communicator& c, at::Tensor const& x) {
    std::int64_t const channels = x.size(1);
    auto const d = all_but_channels(x);
    auto const n = static_cast<double>(channels > 0 ? x.numel() / channels : 0);
    at::Tensor const mean = x.sum(d) / std::max(n, 1.0);
    at::Tensor const squares = (x - along_channels(mean, x)).square().sum(d);
    at::Tensor rows = torch::zeros({c.size(), 2 * channels + 1}, x.options());
    rows[c.rank()].copy_(torch::cat({torch::full({1}, n, x.options()), mean, squares}));
    dtype type{};
    set_type(x.scalar_type(), type);
    all_reduce(p, c, rows, type, reduce_op::sum);
    at::Tensor const counts = rows.narrow(1, 0, 1), means = rows.narrow(1, 1, channels);
    statistics all{counts.sum(), {}, {}};
    all.mean = (counts * means).sum(0) / all.count;
    all.squares = rows.narrow(1, 1 + channels, channels).sum(0) + (counts * (means - all.mean).square()).sum(0);
    return all;
  }
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* its, at::Tensor const& x,
                                                std::int64_t at_place, std::int64_t rank, double eps) {
    place const& p = *reinterpret_cast<place const*>(at_place);
    communicator& c = *reinterpret_cast<communicator*>(rank);
    statistics const all = of_all(p, c, x);
    at::Tensor const scale = (all.squares / all.count + eps).rsqrt();
    at::Tensor const y = (x - along_channels(all.mean, x)) * along_channels(scale, x);
    its->save_for_backward({y, scale, all.count});
    its->saved_data["machine"] = reinterpret_cast<std::int64_t>(p.machine);
    its->saved_data["rank"] = rank;
    its->mark_non_differentiable({all.mean, all.squares, all.count});
    return {y, all.mean, all.squares, all.count};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* its,
                                                 torch::autograd::variable_list gradients) {
    communicator& c = *reinterpret_cast<communicator*>(its->saved_data["rank"].toInt());
    place const p{reinterpret_cast<runtime*>(its->saved_data["machine"].toInt()), c.device()};
    auto const saved = its->get_saved_variables();
    at::Tensor const &y = saved[0], &g = gradients[0];
    auto const d = all_but_channels(y);
    at::Tensor const sums = torch::stack({g.sum(d), (g * y).sum(d)});
    dtype type{};
    set_type(y.scalar_type(), type);
    all_reduce(p, c, sums, type, reduce_op::sum);
    at::Tensor const means = sums / saved[2];
    at::Tensor const dx =
        (g - along_channels(means[0], y) - y * along_channels(means[1], y)) * along_channels(saved[1], y);
    return {dx, {}, {}, {}};
  }
};

}  // namespace detail

// What a batch norm of LibTorch computes in training, over the batches of all ranks. Gradients flow through the
// statistics of all ranks, too. In evaluation it calls the module's forward().
// All ranks call it in the same order. In a module beside data_parallel it takes a communicator of its own (split).
// Requires: the communicator and the runtime outlive the backward pass.
// Throws: not_supported (a type), invalid_use (another number of channels), and what all_reduce throws
template <std::size_t D, class Derived>
at::Tensor batch_norm(communicator& rank, torch::nn::BatchNormImplBase<D, Derived>& norm, at::Tensor const& x,
                      source_location at = source_location::current()) {
  if (!norm.is_training())
    return static_cast<Derived&>(norm).forward(x);
  dtype type{};
  if (!detail::set_type(x.scalar_type(), type) || x.dim() < 2)
    throw not_supported(
        "batch_norm", std::to_string(x.dim()) + " dimensions of " + std::string(c10::toString(x.scalar_type())),
        "Pass a batch of float, double, half or bfloat16 with channels in dimension 1", at, error_id{572});
  if (x.size(1) != norm.options.num_features())
    throw invalid_use(
        "batch_norm",
        std::to_string(x.size(1)) + " channels, and the norm is of " + std::to_string(norm.options.num_features()),
        "Pass a batch with the norm's channels in dimension 1", at, error_id{575});
  // Sums of half and bfloat16 are of float.
  bool const is_short = type == float16 || type == bfloat16;
  detail::place const p{&runtime::current(at), rank.device()};
  auto const all = detail::normalized::apply(is_short ? x.to(at::kFloat) : x, reinterpret_cast<std::int64_t>(&p),
                                             reinterpret_cast<std::int64_t>(&rank), norm.options.eps());
  if (norm.options.track_running_stats() && norm.running_mean.defined()) {
    torch::NoGradGuard const no_grad;
    norm.num_batches_tracked += 1;
    auto const momentum = norm.options.momentum();
    double const share = momentum ? *momentum : 1.0 / norm.num_batches_tracked.template item<double>();
    norm.running_mean.lerp_(all[1].to(norm.running_mean.scalar_type()), share);
    at::Tensor const variance = all[2] / (all[3] - 1).clamp_min(1);
    norm.running_var.lerp_(variance.to(norm.running_var.scalar_type()), share);
  }
  at::Tensor y = all[0];
  if (norm.weight.defined())
    y = y * detail::normalized::along_channels(norm.weight, x) + detail::normalized::along_channels(norm.bias, x);
  return y.to(x.scalar_type());
}

// A module for batch_norm(), with the parameters, buffers and names of a batch norm of LibTorch:
// synchronized<torch::nn::BatchNorm2dImpl>.
template <class Norm>
class synchronized : public torch::nn::Module {
 public:
  synchronized(communicator& rank, torch::nn::BatchNormOptions const& o)
      : torch::nn::Module("synchronized"), rank_(&rank), norm_(std::make_shared<Norm>(o)) {
    // The tensors are the same ones, so that to() and load() change both.
    for (auto const& p : norm_->named_parameters())
      register_parameter(p.key(), p.value(), p.value().requires_grad());
    for (auto const& b : norm_->named_buffers())
      register_buffer(b.key(), b.value());
  }
  // In training all ranks call it.
  at::Tensor forward(at::Tensor const& x) {
    norm_->train(is_training());
    return batch_norm(*rank_, *norm_, x);
  }

 private:
  communicator* rank_;
  std::shared_ptr<Norm> norm_;
};

}  // namespace weir::libtorch
