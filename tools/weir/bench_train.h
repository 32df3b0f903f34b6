// The models of `weir bench train`: linear layers with relu, and a transformer. Weights and data are functions of
// their place, which tools/peers/train_torch.py repeats.
// Threads: one for each rank; all work is enqueued on that thread's current stream.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/collective.h"
#include "weir/tensor.h"

namespace weir::tool {

struct model_shape {
  int width = 4096, layers = 8;
  int rows = 2048;  // of each rank; of a transformer: sequences
  int heads = 0;    // 0: linear layers, else a transformer
  int context = 512, vocabulary = 256;
  dtype type = bfloat16;  // of a transformer's activations and products; bfloat16 or float32
};

// Parameters, gradients and velocities are float32. The products of a transformer in bfloat16 read copies of the
// parameters, as PyTorch's autocast makes them.
class trained_model {
 public:
  virtual ~trained_model() = default;
  virtual void forward_backward() = 0;  // marks each gradient as ready
  virtual double loss() const = 0;      // of this rank's rows in the last step. Blocks: until the device is done
  void finish() { buckets_.finish(current_stream()); }  // the current stream waits for the reductions
  void update();                                        // SGD with momentum
  void reduce_alone();                                  // all reductions of a step, without other work
  gradient_buckets const& buckets() const noexcept { return buckets_; }

 protected:
  trained_model(communicator& ranks, std::size_t bucket_bytes, float rate)
      : buckets_(ranks, {.bucket_bytes = bucket_bytes}), rate_(rate) {}

  gradient_buckets buckets_;
  float rate_;
  tensor velocity_{}, copies_{};  // of all parameters; copies: in bfloat16, or undefined
};

// `own` if it has a width, then the known models of those names; all of them if there is neither.
// Throws: invalid_use (an unknown name)
std::vector<model_shape> chosen_models(std::vector<std::string> const& names, model_shape const& own);

// bucket_bytes: as in bucket_options. Throws: invalid_use (a shape that the kernels cannot carry)
std::unique_ptr<trained_model> make_model(model_shape const&, communicator&, std::size_t bucket_bytes = 0);
std::unique_ptr<trained_model> make_transformer(model_shape const&, communicator&, std::size_t bucket_bytes);

}  // namespace weir::tool
