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
// How much gradient one reduction takes, bytes: a quarter of all, so that most of it runs behind the backward pass.
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

class model {
 public:
  // Adds its parameters to `buckets` and builds it. Every replica starts from rank 0's parameters.
  model(model_shape, weir::communicator&, weir::gradient_buckets&, std::uint64_t seed);

  model_shape const& shape() const noexcept { return shape_; }
  // Sum of the rows' losses times `scale` [1]; the gradients, times `scale`, are marked ready from the last layer to the first.
  weir::tensor forward_backward(device_batch const&, float scale);
  weir::tensor loss(device_batch const&);    // sum of the rows' losses [1], forward only
  weir::tensor logits(device_batch const&);  // [R, V], forward only
  void update(float rate, float momentum);   // SGD; gradients must be finished

  // Parameters and momenta as one sequence of floats, and back. Blocks.
  std::vector<float> save() const;
  void load(std::vector<float> const&);

 private:
  struct parameter {
    weir::tensor value, gradient, velocity;
  };
  struct trace {  // what the backward pass needs of the forward pass
    weir::tensor x;
    std::vector<weir::tensor> h;
    weir::tensor logits;
  };
  trace forward(device_batch const&);
  parameter& weight(int layer) { return parameters_[static_cast<std::size_t>(1 + 2 * layer)]; }
  parameter& bias(int layer) { return parameters_[static_cast<std::size_t>(2 + 2 * layer)]; }

  model_shape shape_;
  weir::gradient_buckets& buckets_;
  std::vector<parameter_row> table_;
  std::vector<parameter> parameters_;  // as the table: embedding, then weight and bias of each layer
};

}  // namespace trainer
