// The model of `weir bench train`: linear layers with relu, a squared error, SGD with momentum. Weights and data are
// functions of their place, which tools/peers/train_torch.py repeats.
// Threads: one for each rank; all work is enqueued on that thread's current stream.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "weir/collective.h"
#include "weir/tensor.h"

namespace weir::tool {

struct mlp_shape {
  int width = 4096, layers = 8, rows = 2048;  // rows: of each rank
};

class mlp {
 public:
  mlp(mlp_shape, communicator&);
  ~mlp();
  void forward_backward();  // marks each gradient as ready
  void finish();            // the current stream waits for the reductions
  void update();
  void reduce_alone();  // all reductions of a step, without other work
  double loss() const;  // of this rank's rows in the last step. Blocks: until the device is done

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::tool
