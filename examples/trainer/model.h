// A character-level language model: an embedding, dense layers with relu, softmax over the next character.
// Threads: one replica, one thread; everything is enqueued on that thread's current stream.
//
// Shapes: R rows of C characters, V characters in the vocabulary, E numbers an embedding, H a hidden layer.
//   x [R, C*E]   h_i [R, H] = relu(h_{i-1} W_i + b_i)   logits [R, V] = h_last W_out + b_out
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weir/collective.h"
#include "weir/tensor.h"

namespace trainer {

struct model_shape {
  int context = 16, vocabulary = 0, embedding = 24, hidden = 256, layers = 2;
  friend bool operator==(model_shape const&, model_shape const&) = default;
};

// Where each parameter stands, in the order of the forward pass.
struct parameter_row {
  std::string name;
  std::int64_t rows, columns;
  std::int64_t count() const noexcept { return rows * columns; }
};
std::vector<parameter_row> parameter_table(model_shape const&);
// How much gradient one reduction takes, bytes:
// a quarter of all, so that most of it runs behind the backward pass.
std::size_t bucket_bytes(model_shape const&);

// A batch on the device, and the block it lives in.
struct device_batch {
  weir::tensor storage;  // int32
  int rows = 0;
  std::int32_t const* inputs = nullptr;
  std::int32_t const* targets = nullptr;
  std::int32_t const* starts = nullptr;
  std::int32_t const* places = nullptr;
};
device_batch split_batch(weir::tensor storage, int rows, model_shape const&);

struct model_options {
  // of activations and products; parameters, gradients and sums are float32. float16: losses are scaled
  weir::dtype type = weir::float32;
  bool recompute = false;  // activations but those of every so-manieth layer are made again in the backward pass
};
bool kept_until_backward(model_shape const&, model_options const&, int layer);  // that layer's activation

struct part_of_step {  // whose gradients are added up
  bool first = true, last = true;
};
struct scaled {  // float16's losses
  float by = 1;
  int steps_skipped = 0;  // their gradients were too large for a half
};

class model {
 public:
  // Adds its parameters to `buckets` and builds it. Every replica starts from rank 0's parameters.
  model(model_shape, model_options, weir::communicator&, weir::gradient_buckets&, std::uint64_t seed);

  model_shape const& shape() const noexcept { return shape_; }
  // Sum of the rows' losses times `scale` [1]; the gradients, times `scale`, are added to those of the step's
  // parts before. With its last part they are marked ready, from the last layer to the first.
  weir::tensor forward_backward(device_batch const&, float scale, part_of_step);
  weir::tensor loss(device_batch const&) const;    // sum of the rows' losses [1], forward only
  weir::tensor logits(device_batch const&) const;  // [R, V], forward only
  void update(float rate, float momentum);         // SGD; gradients must be finished
  scaled scale() const;                            // blocks

  // Parameters and momenta as one sequence of floats, and back. Blocks.
  std::vector<float> save() const;
  void load(std::vector<float> const&);

 private:
  struct parameter {
    weir::tensor value, gradient, velocity;
    weir::tensor half;  // of a weight: the value as products read it; undefined: they read value
  };
  struct trace {  // what the backward pass needs of the forward pass
    weir::tensor x;
    std::vector<weir::tensor> h;  // undefined where it is made again
    weir::tensor logits;
  };
  trace forward(device_batch const&, bool for_training) const;
  void hidden(trace&, int layer) const;  // makes that activation from the one before
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
  weir::gradient_buckets& buckets_;
  std::vector<parameter_row> table_;
  std::vector<parameter> parameters_;  // as the table: embedding, then weight and bias of each layer
  weir::tensor scaling_;               // kernels::loss_scale; undefined: none is needed
};

}  // namespace trainer
