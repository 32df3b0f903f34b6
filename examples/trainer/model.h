// A character-level language model: an embedding, dense layers with relu, softmax over the next character.
// Threads: one per replica; all work is enqueued on that thread's current stream.
//
// Shapes: R rows of C characters, V characters in the vocabulary, E numbers an embedding, H a hidden layer.
//   x [R, C*E]   h_i [R, H] = relu(h_{i-1} W_i + b_i)   logits [R, V] = h_last W_out + b_out
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weir/checkpoint.h"
#include "weir/collective.h"
#include "weir/tensor.h"

namespace trainer {

struct model_shape {
  int context = 16, vocabulary = 0, embedding = 24, hidden = 256, layers = 2;
  friend bool operator==(model_shape const&, model_shape const&) = default;
};

// Parameter shapes in the order of the forward pass.
struct parameter_row {
  std::string name;
  std::int64_t rows, columns;
  std::int64_t count() const noexcept { return rows * columns; }
};
std::vector<parameter_row> parameter_table(model_shape const&);
// Returns: bytes of gradient per reduction. A quarter of all, so most reductions overlap the backward pass.
std::size_t bucket_bytes(model_shape const&);

// A batch on the device, and the tensor that owns its memory.
struct device_batch {
  weir::tensor storage;  // int32
  int rows = 0;
  std::int32_t const* inputs = nullptr;
  std::int32_t const* targets = nullptr;
  std::int32_t const* starts = nullptr;
  std::int32_t const* places = nullptr;
};
device_batch split_batch(weir::tensor storage, int rows, model_shape const&);

enum class optimizer : std::int32_t { sgd, adamw };
// Floats a parameter.
constexpr int states_of(optimizer o) noexcept {
  return o == optimizer::adamw ? 2 : 1;
}

// The names of a parameter's value and of its parts of the optimizer's states.
std::vector<std::string> saved_names(std::string const& parameter, optimizer);

struct update_options {
  float rate = 0, momentum = 0.9f;  // momentum: of sgd
  float decay = 0.01f;              // of adamw
  float clip = 0;                   // the most that the norm of all gradients may be; 0: no limit
};

struct model_options {
  // Type of activations and products. Parameters, gradients and sums are float32. float16 needs loss scaling.
  weir::dtype type = weir::float32;
  optimizer by = optimizer::sgd;
  bool recompute = false;  // keeps every n-th layer's activation; the backward pass recomputes the others
};
bool kept_until_backward(model_shape const&, model_options const&, int layer);  // of that layer

struct part_of_step {  // position of a micro-batch in a step with gradient accumulation
  bool first = true, last = true;
};
struct scaled {  // loss scaling of float16
  float by = 1;
  int steps_skipped = 0;  // gradients overflowed in these steps
};

class model {
 public:
  // Adds its parameters to `buckets` and builds it. Every replica starts from rank 0's parameters.
  model(model_shape, model_options, weir::communicator&, weir::gradient_buckets&, std::uint64_t seed);

  model_shape const& shape() const noexcept { return shape_; }
  // Adds the sum of the rows' losses, and the gradients, times `scale`, to those of the step's earlier parts. The
  // last part marks all as ready: the loss, then the gradients from the last layer to the first.
  void forward_backward(device_batch const&, float scale, part_of_step);
  weir::tensor step_loss() const;                  // of all replicas, once the gradients are finished
  weir::tensor loss(device_batch const&) const;    // sum of the rows' losses [1], forward pass only
  weir::tensor logits(device_batch const&) const;  // [R, V], forward pass only
  // One kernel for all parameters. `step` counts from 0. Requires: finished gradients
  void update(std::int64_t step, update_options const&);
  scaled scale() const;  // Blocks: until the device is done

  // Parameters and the optimizer's states as one sequence of floats. Pinned memory holds them when the stamp is
  // complete.
  std::int64_t saved_floats() const;
  weir::stamp save(weir::tensor const& into) const;
  std::vector<weir::checkpoint_item> saved_items() const;  // the same, in the model's own memory
  // Every replica gets those of rank 0. Requires: the floats on rank 0. Blocks: until they are on its device
  void load(std::vector<float> const*);

 private:
  struct parameter {
    weir::tensor value, gradient;
    std::vector<weir::tensor> saved;  // value, and its parts of the optimizer's states
    weir::tensor half;                // of a weight: its copy for products; undefined if products read `value`
  };
  struct trace {  // results of the forward pass that the backward pass needs
    weir::tensor x;
    std::vector<weir::tensor> h;  // undefined where recomputed
    weir::tensor logits;
  };
  trace forward(device_batch const&, bool for_training) const;
  void hidden(trace&, int layer) const;  // computes the activation from the previous layer's
  weir::tensor const& activation(trace&, int layer) const;
  void round_weights();
  float* scaling() const { return scaling_.defined() ? scaling_.data<float>() : nullptr; }
  parameter const& weight(int layer) const { return parameters_[static_cast<std::size_t>(1 + 2 * layer)]; }
  parameter const& bias(int layer) const { return parameters_[static_cast<std::size_t>(2 + 2 * layer)]; }
  parameter& weight(int layer) { return parameters_[static_cast<std::size_t>(1 + 2 * layer)]; }
  parameter& bias(int layer) { return parameters_[static_cast<std::size_t>(2 + 2 * layer)]; }
  weir::tensor const& factor(int layer) const {
    return weight(layer).half.defined() ? weight(layer).half : weight(layer).value;
  }

  model_shape shape_;
  model_options options_;
  weir::communicator& ranks_;
  weir::gradient_buckets& buckets_;
  int loss_ = 0;  // its number among the gradients
  std::vector<parameter_row> table_;
  std::vector<parameter> parameters_;     // as in parameter_table: embedding, then weight and bias of each layer
  weir::device_span values_, gradients_;  // of all parameters, with gaps
  std::vector<weir::tensor> states_;      // of the optimizer, for each of values_
  weir::tensor scaling_;                  // kernels::loss_scale; undefined if not needed
};

}  // namespace trainer
