// Which crew copies for which device: one for all, but where the host has several nodes,
// one for each of them.
// Threads: any.
#pragma once
#include <map>
#include <memory>

#include "streams/copy/copy_workers.h"

namespace weir::streams {

class staging_crews {
 public:
  explicit staging_crews(int threads) : common_(std::make_shared<copy_crew>(threads)), threads_(threads) {}

  // Near that node of the host, with its threads on the node's processors, where those are known, are as many
  // as a crew has threads and are not all there are; else the common one. A crew is shared with fetches that
  // are still in a stream at teardown.
  std::shared_ptr<copy_crew> of(int node) noexcept;
  void work_by(copy_crew::manner) noexcept;  // all of them
  void stop() noexcept;

 private:
  std::shared_ptr<copy_crew> const common_;
  int const threads_;
  struct known {
    std::map<int, std::shared_ptr<copy_crew>> near;  // the common one, too
    copy_crew::manner how{.threads = 0};             // once somebody has set it
    bool stopped = false;
  };
  base::guarded<known> known_;
};

}  // namespace weir::streams
