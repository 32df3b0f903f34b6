// A whole training run, from the first step to the generated sample: a worker for each rank of this process, which
// has all ranks, or one of several processes.
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
  std::vector<float> values;  // model::save(), if a checkpoint was requested. On rank 0
  bool agree() const noexcept;
};

// Trains with these ranks; begins at report.first_step with the values of `from`, which rank 0 needs.
// Throws: the exception of the first replica that failed; stops the others.
outcome train(settings const&, text const&, checkpoint const* from, report&, std::vector<weir::communicator> ranks);
// The same on devices 0 … report.replicas - 1 of the thread's current runtime.
outcome train(settings const&, text const&, checkpoint const* from, report&);
// Every rank gets rank 0's number. Blocks: until all have called
std::int64_t from_rank_0(weir::communicator&, std::int64_t);

}  // namespace trainer
