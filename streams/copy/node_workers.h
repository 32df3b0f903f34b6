// The copy crew of each device: a common one, or one per NUMA node if the host has several.
// Threads: any.
#pragma once
#include <map>
#include <memory>

#include "streams/copy/copy_workers.h"

namespace weir::streams {

class node_workers {
 public:
  explicit node_workers(int threads) : common_(std::make_shared<copy_workers>(threads)), threads_(threads) {}

  // The node's own crew, if the node has enough known processors for its threads and is not the whole host;
  // else the common one. Shared: fetches may still be queued at teardown.
  std::shared_ptr<copy_workers> of(int node) noexcept;
  void work_by(copy_workers::tuning) noexcept;  // all crews
  void stop() noexcept;

 private:
  std::shared_ptr<copy_workers> const common_;
  int const threads_;
  struct known {
    std::map<int, std::shared_ptr<copy_workers>> near;  // includes the common one
    copy_workers::tuning how{.threads = 0};             // threads 0: never set
    bool stopped = false;
  };
  base::guarded<known> known_;
};

}  // namespace weir::streams
