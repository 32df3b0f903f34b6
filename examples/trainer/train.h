// A whole training run with one worker per device, from the first step to the generated sample.
// Threads: one run at a time per runtime; any thread may read the report during the run.
#pragma once
#include <string>
#include <vector>

#include "replica.h"

namespace trainer {

struct outcome {
  std::vector<std::uint64_t> fingerprints;  // of each replica's parameters
  double validation_loss = 0;               // nats per character
  std::int64_t validation_rows = 0;
  std::string sample;
  int buckets = 0;            // reductions per step
  scaled scale;               // after the last step
  double seconds_a_step = 0;  // without the first step
  std::vector<float> values;  // model::save(), if a checkpoint was requested
  bool agree() const noexcept;
};

// Trains on devices 0 … report.replicas - 1 of the thread's current runtime; resumes at `from` unless null.
// Throws: the exception of the first replica that failed; stops the others.
outcome train(settings const&, text const&, checkpoint const* from, report&);

}  // namespace trainer
