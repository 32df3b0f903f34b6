// A whole training run: a worker a device, from the first step to the sample.
// Threads: one run at a time a runtime; report may be watched from any thread meanwhile.
#pragma once
#include <string>
#include <vector>

#include "replica.h"

namespace trainer {

struct outcome {
  std::vector<std::uint64_t> fingerprints;  // of each replica's parameters
  double validation_loss = 0;               // nats a character
  std::int64_t validation_rows = 0;
  std::string sample;
  int buckets = 0;            // reductions a step
  scaled scale;               // at the end
  double seconds_a_step = 0;  // without the first
  std::vector<float> values;  // model::save(), when a checkpoint is asked for
  bool agree() const noexcept;
};

// Trains on devices 0 … report.replicas - 1 of the thread's current runtime, from `from` when given.
// Throws: what the first replica that failed threw; the others are stopped.
outcome train(settings const&, text const&, checkpoint const* from, report&);

}  // namespace trainer
