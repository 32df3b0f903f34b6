// Peak memory and time of a training step for each training method, beside the sum of parameters and kept
// activations.
// Threads: one; no other run at the same time.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train.h"

namespace trainer {

struct row {
  std::string way;
  std::int64_t parameters = 0;  // bytes: values, gradients, velocities and copies for products
  std::int64_t kept_a_row = 0;  // bytes of activations kept for the backward pass, per row of a batch
  std::int64_t rows = 0;        // of one part of a batch on one device
  std::int64_t peak = 0;        // most bytes allocated on device 0
  double seconds_a_step = 0;
  double validation_loss = 0;  // over as many characters as a batch has
  std::int64_t expected() const noexcept { return parameters + rows * kept_a_row; }
};

// Trains s.steps steps (at least 2) with each method. Gradient accumulation uses four parts.
// Throws: as train; std::runtime_error if a replica's share of the batch is not divisible by four.
std::vector<row> compare_ways(settings, text const&, int replicas);
std::string table_of(std::vector<row> const&);

}  // namespace trainer
