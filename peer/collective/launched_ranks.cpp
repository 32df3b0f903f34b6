// The ranks of a launch, and a thread for each rank of this process.
// Threads: as weir/collective.h.
#include <exception>

#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/device.h"

namespace weir {

std::vector<communicator> communicator::create_launched(int count, rank_options o, source_location at) {
  launch_info const l = this_launch(at);
  bool const is_alone = l.how == launch_info::by::itself;
  int const there = is_alone ? streams::current_runtime(at).device_count() : l.size;
  if (count < 0 || count > there || (!is_alone && count != 0))
    throw invalid_use(
        "communicator::create_launched",
        base::text(count, " ranks: there are ", there, is_alone ? " devices" : " processes, and each is one rank"),
        "Pass 0 for all, or without a launcher a number of devices", at, error_id{605});
  std::vector<communicator> ranks;
  if (!is_alone) {
    ranks.push_back(from_environment(o, at));
    return ranks;
  }
  std::vector<weir::device> devices;
  for (int i = 0; i < (count ? count : there); ++i)
    devices.emplace_back(i);
  return create_all(devices, at);
}

void run_ranks(std::span<communicator> ranks, std::function<void(communicator&)> const& body, source_location at) {
  base::mutex mutex;
  std::exception_ptr cause;  // under the mutex: what follows from it comes later
  auto const fail = [&](communicator& rank) {
    {
      base::lock_guard const lock(mutex);
      if (!cause)
        cause = std::current_exception();
    }
    rank.abort();
  };
  std::vector<base::thread> threads;
  try {
    for (communicator& rank : ranks) {
      threads.emplace_back([&] {
        try {
          runtime_guard const in(rank.state_->all->owner("run_ranks", at).facade());
          device_guard const here(rank.device(), at);
          body(rank);
        } catch (...) {
          fail(rank);
        }
      });
    }
  } catch (...) {  // no thread, or no host memory
    for (communicator& rank : ranks)
      fail(rank);
  }
  for (base::thread& t : threads)
    t.join();
  if (cause)
    std::rethrow_exception(cause);
}

}  // namespace weir
