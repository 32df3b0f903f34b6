// GPT-2 as a module of LibTorch. Parameters have the names and layouts of Hugging Face's GPT2LMHeadModel, whose files
// it reads and writes. Products are of float32 or bfloat16; parameters, norms, sums and the loss of float32.
// Threads: one at a time.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/version.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "examples/gpt2/gpt2.h"

namespace gpt2 {

// A weight, and the bias that most have.
struct layer : torch::nn::Module {
  layer(std::vector<std::int64_t> const& of_weight, std::int64_t of_bias)
      : weight(register_parameter("weight", torch::empty(of_weight))) {
    if (of_bias > 0)
      bias = register_parameter("bias", torch::empty({of_bias}));
  }
  // GPT-2's weights are inputs by outputs.
  at::Tensor product(at::Tensor const& x, at::ScalarType type) const {
    return torch::addmm(bias.to(type), x.to(type), weight.to(type));
  }
  at::Tensor norm(at::Tensor const& x) const { return torch::layer_norm(x, weight.sizes(), weight, bias, 1e-5); }
  at::Tensor weight, bias;
};

inline std::shared_ptr<torch::nn::Module> add(torch::nn::Module& to, std::string const& name) {
  return to.register_module(name, std::make_shared<torch::nn::Module>());
}
inline std::shared_ptr<layer> add(torch::nn::Module& to, std::string const& name,
                                  std::vector<std::int64_t> const& of_weight, std::int64_t of_bias = 0) {
  return to.register_module(name, std::make_shared<layer>(of_weight, of_bias));
}

// Each position sees itself and those before it. [rows, heads, context, width of a head]
inline at::Tensor causal_attention(at::Tensor const& q, at::Tensor const& k, at::Tensor const& v) {
#if TORCH_VERSION_MAJOR >= 2
  return torch::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
#else
  at::Tensor const hidden = torch::ones({q.size(2), q.size(2)}, q.options().dtype(at::kBool)).triu(1);
  at::Tensor const scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(3).matmul(v);
#endif
}

struct block : torch::nn::Module {
  explicit block(settings const& s) : heads(s.heads) {
    std::int64_t const w = s.width;
    ln_1 = add(*this, "ln_1", {w}, w);
    auto const attn = add(*this, "attn");
    c_attn = add(*attn, "c_attn", {w, 3 * w}, 3 * w);
    of_attention = add(*attn, "c_proj", {w, w}, w);
    ln_2 = add(*this, "ln_2", {w}, w);
    auto const mlp = add(*this, "mlp");
    c_fc = add(*mlp, "c_fc", {w, 4 * w}, 4 * w);
    of_mlp = add(*mlp, "c_proj", {4 * w, w}, w);
  }
  // x: [rows * context, width]
  at::Tensor forward(at::Tensor x, std::int64_t rows, at::ScalarType type) {
    auto parts = c_attn->product(ln_1->norm(x), type).split(x.size(1), 1);
    for (at::Tensor& part : parts)
      part = part.view({rows, -1, heads, x.size(1) / heads}).transpose(1, 2);
    at::Tensor const seen = causal_attention(parts[0], parts[1], parts[2]).transpose(1, 2).reshape(x.sizes());
    x = x + of_attention->product(seen, type);
    return x + of_mlp->product(torch::gelu(c_fc->product(ln_2->norm(x), type), "tanh"), type);
  }
  std::int64_t heads;
  std::shared_ptr<layer> ln_1, c_attn, of_attention, ln_2, c_fc, of_mlp;
};

class model : public torch::nn::Module {
 public:
  explicit model(settings const& s) : type_(s.dtype == "bf16" ? at::kBFloat16 : at::kFloat) {
    auto const all = add(*this, "transformer");
    wte_ = add(*all, "wte", {s.vocabulary, s.width});
    wpe_ = add(*all, "wpe", {s.context, s.width});
    auto const h = add(*all, "h");
    for (std::int64_t i = 0; i < s.layers; ++i)
      blocks_.push_back(h->register_module(std::to_string(i), std::make_shared<block>(s)));
    ln_f_ = add(*all, "ln_f", {s.width}, s.width);
  }
  // GPT-2's: what ends in a residual sum of 2 * layers terms begins smaller.
  void initialise(std::int64_t seed) {
    torch::NoGradGuard const no_grad;
    at::Generator random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    for (auto const& p : named_parameters()) {
      bool const ends_in_sum = p.key().find("c_proj") != std::string::npos;
      double const spread = 0.02 / (ends_in_sum ? std::sqrt(2.0 * static_cast<double>(blocks_.size())) : 1);
      if (p.value().dim() > 1)
        p.value().normal_(0, spread, random);
      else
        p.value().fill_(p.key().find("ln_") != std::string::npos && p.key().ends_with("weight") ? 1 : 0);
    }
  }
  // Returns: the mean loss of [rows, context] tokens. The weights of the logits are those of the tokens.
  at::Tensor forward(at::Tensor const& inputs, at::Tensor const& targets) {
    at::Tensor x = torch::embedding(wte_->weight, inputs) + wpe_->weight.narrow(0, 0, inputs.size(1));
    x = x.view({-1, x.size(2)});
    for (auto const& b : blocks_)
      x = b->forward(x, inputs.size(0), type_);
    // A product with columns in multiples of 128 is quicker. What is added takes no part in the loss.
    std::int64_t const vocabulary = wte_->weight.size(0), padding = -vocabulary & 127;
    at::Tensor const weight = torch::constant_pad_nd(wte_->weight.to(type_), {0, 0, 0, padding});
    at::Tensor const logits = torch::mm(ln_f_->norm(x).to(type_), weight.t()).narrow(1, 0, vocabulary);
    return torch::cross_entropy_loss(logits.to(at::kFloat), targets.reshape({-1}));
  }

 private:
  at::ScalarType type_;
  std::shared_ptr<layer> wte_, wpe_, ln_f_;
  std::vector<std::shared_ptr<block>> blocks_;
};

}  // namespace gpt2
