// A transformer on characters, and its training by all ranks: the model, the text, a run.
// Threads: a model has one, and enqueues work on its current stream; one run at a time per runtime.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/checkpoint.h"

namespace trainer {

struct model_shape {  // the heads divide the width
  int context = 0, width = 0, layers = 0, heads = 0, vocabulary = 0;
};

// Layers of causal attention and of a dense part with gelu, each behind a normalization and added to what it read.
// All parameters are matrices: a gain of a normalization would be part of the matrix behind it.
class model {
 public:
  // Parameters, gradients and the optimizer's state are float32, activations and products of `type`: float32 or
  // bfloat16. Every replica starts from rank 0's parameters, which manual_seed() decides.
  model(model_shape const&, weir::dtype type, weir::adamw_options, weir::communicator&);
  // Tokens: uint8 [context + 1, sequences] on the device. Each place predicts the token of the next one.
  // Changes the parameters by the gradients of `factor` times the losses of all replicas' tokens, reduced meanwhile.
  // Returns: factor * losses of all replicas, until the next step.
  weir::tensor step(weir::device_span tokens, float factor, double rate);
  weir::tensor loss(weir::device_span tokens);    // the sum of the losses, by a forward pass alone
  weir::tensor logits(weir::device_span tokens);  // float32 [context * sequences, vocabulary]
  // All from which training goes on. After a change of it: round_parameters()
  std::vector<weir::checkpoint_item> state() const { return weir::training_items(buckets_, *optimizer_); }
  void round_parameters();
  weir::gradient_buckets const& buckets() const noexcept { return buckets_; }

 private:
  template <class T>
  friend struct pass;
  template <class F>
  auto with_pass(weir::device_span tokens, F);
  struct parameter {
    weir::tensor value, gradient, factor;  // factor: of products, in type_
  };
  model_shape shape_;
  weir::dtype type_;
  weir::gradient_buckets buckets_;
  std::vector<parameter> parameters_;  // embedding; qkv, proj, up and down of each layer; out
  std::optional<weir::optimizer> optimizer_;
};

struct settings {
  std::string text_file, save_file;
  bool resume = false;                     // from save_file if it is there
  std::int64_t steps = 0, save_every = 0;  // save_every: steps between checkpoints; 0: one at the end
  model_shape shape;
  weir::dtype type = weir::float32;
  int batch = 0, sample = 400;  // batch: sequences of a step, over all replicas. sample: characters to write at the end
  weir::adamw_options how = {.rate = 0, .beta2 = 0.99, .decay = 0.1, .max_norm = 1};  // rate: the highest
  std::uint64_t seed = 1;
};

struct text {
  // Reads the file, and sets the shape's vocabulary.
  // Throws: std::runtime_error with the file's name and the reason (not readable, too short, not text)
  text(std::string const& file, model_shape&);
  std::string characters;            // token i is characters[i]
  std::vector<std::uint8_t> tokens;  // the last tenth is for validation
  std::span<std::uint8_t const> training() const { return std::span(tokens).first(tokens.size() - tokens.size() / 10); }
  std::span<std::uint8_t const> validation() const { return std::span(tokens).last(tokens.size() / 10); }
};

struct outcome {
  std::vector<std::int64_t> fingerprints;  // of each replica's parameters
  int buckets = 0;                         // reductions a step
  double validation_loss = 0;              // nats a character
  std::string sample;
};

// Trains a replica on each of these ranks, which are all or this process's. told(step, loss) comes from the first.
// Throws: what the first replica that failed has thrown; stops the others.
outcome train(settings const&, text const&, std::span<weir::communicator>,
              std::function<void(std::int64_t, float)> const& told);

}  // namespace trainer
