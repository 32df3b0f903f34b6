// weir/optimizer.h: AdamW and SGD over many tensors in one launch, clipping, and the loss scale of float16.
// All that a step reads and writes lies on the device: a captured step runs as an eager one does.
// Threads: one at a time for each object.
#pragma once
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weir/collective.h"

namespace weir WEIR_API {

// A parameter and what is subtracted from it. Parameters: float32, float64, or float16 and bfloat16 with a
// float32 master copy, which the optimizer keeps. Gradients: the parameter's type, float32, float16 or
// bfloat16.
struct update_item {
  device_span parameter, gradient;  // of equal counts
  double rate = 1;                  // times the optimizer's. 0: the item is left alone, without state and norm
  double decay = 1;                 // times the optimizer's. 0: for biases and norms
  bool is_part = false;             // other ranks update the rest; there may be nothing for this one
};
// The parameters of buckets with what was reduced of each, in the order of add(). One that was added without
// memory for a parameter has the rate 0. Of sharded buckets this rank's parts. Throws: invalid_use (not
// built)
std::vector<update_item> items_of(gradient_buckets const&, source_location = source_location::current());

// Of a loss scale
struct loss_scale_options {
  double first = 65536;      // a power of two, so that scaling rounds nothing
  double most = 16777216;    // it grows no further
  int steps_to_grow = 2000;  // in a row
};

// The factor of a loss whose small float16 gradients would otherwise become zero. It doubles after so many
// steps in a row, up to `most`. A step of infinite or undefined gradients halves it, down to 1.
class loss_scale {
 public:
  // Allocates on the current stream of the current device. Requires: other streams wait for that stream.
  // Blocks: host, until the work of that stream is done.
  // Throws: invalid_use (numbers), out_of_memory, device_lost, driver_error
  explicit loss_scale(loss_scale_options = {}, source_location = source_location::current());
  device_span value() const;  // one float32: the gradient of the loss starts as that number
  device_span state() const;  // two float32 for a checkpoint: the scale, and the steps since it changed
  // As passed
  loss_scale_options const& options() const noexcept { return options_; }
  // Returns: the scale behind all work of the stream. Blocks: host, until then. Throws: device_lost,
  // driver_error
  float read(stream_ref, source_location = source_location::current()) const;

 private:
  buffer block_;
  loss_scale_options options_;
};

// Returns: the factor of a step's learning rate. It rises to 1 within `warm` steps, then falls as half a cosine to `last`.
double warm_cosine(std::int64_t step, std::int64_t steps, std::int64_t warm, double last = 0.1) noexcept;

// Of AdamW
struct adamw_options {
  double rate = 1e-3;     // until set_rate()
  double beta1 = 0.9;     // of the mean
  double beta2 = 0.999;   // of the mean square
  double epsilon = 1e-8;  // beside the root of the mean square
  double decay = 0.01;    // of weights
  // The most that the norm of all gradients may be: larger ones are scaled to it
  double max_norm = std::numeric_limits<double>::infinity();
  // Gradients come multiplied by it. It outlives the last step, and no other optimizer has it.
  loss_scale* scale = nullptr;
  // Of items that are parts: the norm is that of all ranks. Other items are equal on all ranks: one counts.
  // It outlives the last step. Null: each rank's own. Requires: the constructor does not allocate from a pool
  // that register_pool() took: the ranks' states differ in bytes, and later blocks in their places
  communicator* ranks = nullptr;
};
// Of SGD
struct sgd_options {
  double rate = 1e-3;                                         // until set_rate()
  double momentum = 0;                                        // 0: none
  double decay = 0;                                           // of weights
  bool nesterov = false;                                      // looks ahead by the momentum
  double max_norm = std::numeric_limits<double>::infinity();  // as of adamw
  loss_scale* scale = nullptr;                                // as of adamw
  communicator* ranks = nullptr;                              // as of adamw
};

// A part of an optimizer's state
struct state_part {
  // "steps", "skipped", "rate", and of item i: "mean.i" and "square.i", or "velocity.i"; "master.i"
  std::string name;
  device_span data;  // until the optimizer ends
  int item = -1;     // i; -1: of all items
};

// What adamw and sgd have in common. An optimizer takes either by a move.
class optimizer {
 public:
  optimizer(optimizer&&) noexcept;
  optimizer& operator=(optimizer&&) noexcept;
  ~optimizer();  // Requires: no launch of a graph with its steps runs, or comes later

  // Updates all parameters: one launch for all, behind one of a single thread. With a limit of the norm or a
  // loss scale, two launches before them compute the norm of all gradients in an order that the counts
  // alone give. Each rank with equal gradients gets equal bits. With `ranks`, all call it, and share the sums
  // between. A step whose norm is not finite in float64 changes no parameter and no state, and counts as
  // skipped. A captured step is one of each launch of the graph.
  // Requires: the stream comes behind the work that wrote the gradients. A refused call is repeated before
  // the next. One that is refused in a capture has left nothing: its capture is begun anew.
  // Throws: invalid_use (captured, and a refused call was not repeated; with `ranks`, a stream of another
  // device), as launch (weir/launch.h). Blocks: no
  void step(stream_ref, source_location = source_location::current());
  // The same, and gathers the parameters of sharded buckets beside later work: the gather of a bucket begins behind its
  // update, one launch for each. Those come first that the next forward pass uses first. There wait_gathered() of the
  // buckets comes before the first use of a parameter, and gather() before all other uses, or before a capture ends.
  // Of several optimizers of one set of buckets the last alone passes the buckets.
  // Requires: all ranks call it. Throws: also invalid_use (buckets that are not built, not sharded, of another device, or
  // without an item of this optimizer; gathers are under way; a refused call was repeated with other buckets)
  void step(stream_ref, gradient_buckets&, source_location = source_location::current());
  // Of the stream's next steps, captured ones included. Throws: invalid_use (negative, not finite), as launch
  void set_rate(stream_ref, double, source_location = source_location::current());
  // Steps so far that were not skipped. Throws: invalid_use (negative), as launch
  void set_steps(stream_ref, std::int64_t, source_location = source_location::current());
  // Reads the master copies from the parameters again, as the constructor did. Throws: as launch
  void read_parameters(stream_ref, source_location = source_location::current());

  // Return: a number behind all work of the stream. Block: host, until then. Throw: device_lost, driver_error
  std::int64_t steps(stream_ref, source_location = source_location::current()) const;
  std::int64_t skipped(stream_ref, source_location = source_location::current()) const;
  // Where the norm of the last step lies, before clipping and without the scale: one float32. Infinite if
  // float32 has no such number. Without a limit and a scale nothing computes it: count 0
  device_span norm() const;
  // What a checkpoint saves beside the parameters. Copies of it, with those of the parameters and of the loss
  // scale's state, continue with the bits of a run that was not interrupted.
  std::vector<state_part> state() const;

 private:
  friend class adamw;
  friend class sgd;
  struct parts;
  void make_calls(stream_ref, gradient_buckets*, source_location);
  explicit optimizer(std::unique_ptr<parts>) noexcept;
  std::unique_ptr<parts> parts_;
};

// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), in
// the order of torch.optim.AdamW. At step t = 1, 2, … of a gradient g and a parameter p:
//   p -= rate * decay * p            mean = beta1 * mean + (1 - beta1) * g
//                                    square = beta2 * square + (1 - beta2) * g * g
//   p -= rate / (1 - beta1^t) * mean / (sqrt(square / (1 - beta2^t)) + epsilon)
// Computed in float32, of float64 parameters in float64.
class adamw : public optimizer {
 public:
  // Allocates the state in one block, zeroed, on the current stream of the parameters' device: without
  // parameters, of the current device. Reads 16-bit parameters there, which are written before. No later call
  // allocates device memory.
  // Requires: other streams wait for that stream. The items' memory outlives the last step's work.
  // Blocks: host, until the work of that stream is done.
  // Throws: invalid_use (numbers; nothing to update; counts; parameters that share memory), not_supported
  // (types), out_of_memory, device_lost, driver_error
  adamw(std::span<update_item const>, adamw_options = {}, source_location = source_location::current());
  explicit adamw(gradient_buckets const&, adamw_options = {}, source_location = source_location::current());
};

// Stochastic gradient descent in the order of torch.optim.SGD without dampening:
//   g += decay * p
//   velocity = momentum * velocity + g
//   p -= rate * (nesterov ? g + momentum * velocity : velocity)
// Without momentum there is no velocity, and no state of an item: p -= rate * g
class sgd : public optimizer {
 public:
  // As of adamw. Also throws: invalid_use (nesterov without momentum)
  sgd(std::span<update_item const>, sgd_options = {}, source_location = source_location::current());
  explicit sgd(gradient_buckets const&, sgd_options = {}, source_location = source_location::current());
};

}  // namespace weir
