// The worker of one device: it prefetches batches, trains on its part of each global batch, and reduces
// gradients.
// Threads: each replica belongs to the thread that created it; all replicas write the report.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "model.h"
#include "text.h"

namespace trainer {

struct settings {
  std::string text_file, load_file, save_file, losses_file;
  std::int64_t save_every = 0;  // steps between checkpoints; 0: one at the end
  model_shape shape;
  model_options how;
  int batch = 256;     // rows of a global batch, over all replicas
  int accumulate = 1;  // micro-batches per replica and step; their gradients are summed
  std::int64_t steps = 3000;
  update_options update = {.rate = 0.2f};
  std::uint64_t seed = 1;
  int sample = 400;             // characters to generate at the end
  int validation_rows = 32768;  // at most
};

// Progress of this process's replicas for an observer thread. The first of them writes the loss before it raises
// its `done`.
struct report {
  report(int replicas, std::int64_t steps, std::int64_t first)
      : replicas(static_cast<std::size_t>(replicas)),
        first_step(first),
        losses(static_cast<std::size_t>(steps)),
        done(this->replicas) {}
  std::int64_t steps_done() const noexcept;        // minimum over all replicas
  double loss(std::int64_t step) const noexcept {  // of the global batch. Requires: step < steps_done()
    return static_cast<double>(losses[static_cast<std::size_t>(step)]);
  }

  std::size_t replicas;
  std::int64_t first_step;
  std::vector<float> losses;
  std::vector<std::atomic<std::int64_t>> done;
  std::atomic<bool> failed{false};
};

class replica {
 public:
  // `number`: among the replicas of this process
  replica(settings const&, text const&, weir::communicator&, report&, std::size_t number);
  ~replica();

  // Calls keep(step, items) for checkpoints, on all ranks.
  void train(std::int64_t first_step, std::int64_t last_step,
             std::function<void(std::int64_t step, std::vector<weir::checkpoint_item> const&)> const& keep);
  double validation_loss_sum(std::int64_t& rows);  // over this replica's share of the rows
  std::string generate(int characters);
  int buckets() const { return buckets_.bucket_count(); }
  std::uint64_t fingerprint();  // hash of the parameters' bits; equal on all replicas
  scaled scale() const { return model_.scale(); }
  double seconds_a_step() const { return seconds_a_step_; }  // of the last train(), without its first step
  std::vector<float> save();
  void load(std::vector<float> const* values) { model_.load(values); }

 private:
  // Host memory that the copy engine reads, and the device batch that it writes on the copy stream.
  struct slot {
    weir::tensor host, device;
    weir::stamp arrived;
  };
  // Part numbers count from the first step's first part.
  void prefetch(std::int64_t part);
  device_batch take(std::int64_t part);
  slot& slot_of(std::int64_t part) { return slots_[static_cast<std::size_t>(part % 2)]; }
  void send(slot&, int rows);
  float rate_at(std::int64_t step) const;

  settings const& settings_;
  text const& text_;
  weir::communicator& ranks_;
  report& report_;
  std::size_t number_;
  int rows_;  // per part, on this replica
  weir::stream copies_;
  weir::gradient_buckets buckets_;
  model model_;
  slot slots_[2];
  weir::tensor loss_[2];  // pinned, one number each
  double seconds_a_step_ = 0;
};

}  // namespace trainer
