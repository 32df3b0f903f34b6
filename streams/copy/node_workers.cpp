// A crew is created at the first copy for a device of its node.
// Threads: any.
#include "streams/copy/node_workers.h"

#include <utility>

#include "runtime/base/os_numa.h"

namespace weir::streams {

std::shared_ptr<copy_workers> node_workers::of(int node) noexcept {
  if (node < 0 || threads_ == 0) return common_;
  try {
    auto all = known_.lock();
    auto& its = all->near[node];
    if (its) return its;
    auto near = os::usable_processors_near(node);
    its = common_;
    if (near.size() < static_cast<std::size_t>(threads_) || all->stopped) return its;
    its = std::make_shared<copy_workers>(threads_, std::move(near));
    if (all->how.threads) its->work_by(all->how);
    return its;
  } catch (...) {
    return common_;  // no memory for its own crew
  }
}

void node_workers::work_by(copy_workers::tuning how) noexcept {
  auto all = known_.lock();
  all->how = how;
  common_->work_by(how);
  for (auto& [node, one] : all->near) one->work_by(how);
}

void node_workers::stop() noexcept {
  std::map<int, std::shared_ptr<copy_workers>> near;
  {
    auto all = known_.lock();
    all->stopped = true;
    near = std::exchange(all->near, {});
  }
  common_->stop();
  for (auto& [node, one] : near) one->stop();
}

}  // namespace weir::streams
