// The copy crew of each device: a common one, or one per NUMA node if the host has several.
// Threads: any.
#pragma once
#include <map>
#include <memory>

#include "streams/copy/copy_workers.h"

namespace weir::streams {

class staging_crews {
 public:
  explicit staging_crews(int threads) : common_(std::make_shared<copy_crew>(threads)), threads_(threads) {}

  // The crew near that node, else the common one. A node's own crew needs known processors: at least as many
  // as the crew has threads, but not all of the host. A crew is shared with fetches that are still queued at
  // teardown.
  std::shared_ptr<copy_crew> of(int node) noexcept;
  void work_by(copy_crew::manner) noexcept;  // all crews
  void stop() noexcept;

 private:
  std::shared_ptr<copy_crew> const common_;
  int const threads_;
  struct known {
    std::map<int, std::shared_ptr<copy_crew>> near;  // includes the common one
    copy_crew::manner how{.threads = 0};             // threads 0: never set
    bool stopped = false;
  };
  base::guarded<known> known_;
};

}  // namespace weir::streams
