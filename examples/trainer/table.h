// What memory a training step takes, and how long, in each way of training the same model: beside what its
// parameters and the activations that it keeps make out.
// Threads: one; no other run meanwhile.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train.h"

namespace trainer {

struct row {
  std::string way;
  std::int64_t parameters = 0;   // bytes: values, gradients, velocities and what products read
  std::int64_t kept_a_row = 0;   // bytes of activations between forward and backward pass, for one row of a batch
  std::int64_t rows = 0;         // of a part of a batch on one device
  std::int64_t peak = 0;         // bytes allocated on device 0 at most
  double seconds_a_step = 0;
  double loss = 0;               // of the last step
  std::int64_t expected() const noexcept { return parameters + rows * kept_a_row; }
};

// Trains s.steps steps (at least 2) in each way. In parts, batches are cut in four.
// Throws: as train; std::runtime_error when a replica's share cannot be cut in four.
std::vector<row> compare_ways(settings, text const&, int replicas);
std::string table_of(std::vector<row> const&);

}  // namespace trainer
