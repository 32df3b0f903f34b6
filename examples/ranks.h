// The ranks of this process, and their work on a thread for each.
// Threads: one run at a time per runtime.
#pragma once
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "examples/ending.h"
#include "weir/collective.h"
#include "weir/device.h"
#include "weir/tensor.h"

namespace examples {

// The ranks' numbers in order of rank, on each of them. T: of a dtype. Blocks: until all have called
template <class T>
std::vector<T> gather(weir::communicator& ranks, T mine) {
  weir::tensor const one = weir::tensor_of({mine}), all = one.new_empty({ranks.size()});
  ranks.all_gather({all.data(), ranks.size(), one.dtype()}, {one.data(), 1, one.dtype()});
  weir::tensor const host = all.cpu();
  return {host.host<T>().begin(), host.host<T>().end()};
}

// One rank for each of the first devices.
inline std::vector<weir::communicator> ranks_on_devices(int count) {
  std::vector<weir::device> devices;
  for (int i = 0; i < count; ++i)
    devices.emplace_back(i);
  return weir::communicator::create_all(devices);
}

// The rank that a launcher gave this process, or one for each of the first `count` devices; 0: all.
// Throws: usage_error (there are not so many devices)
inline std::vector<weir::communicator> ranks_of_launch(int count) {
  weir::launch_info const launched = weir::this_launch();
  bool const alone = launched.how == weir::launch_info::by::itself;
  int const available = alone ? weir::device_count() : launched.size;
  if (count < 0 || count > available || (!alone && count != 0))
    throw usage_error(std::to_string(count) + " replicas: there are " + std::to_string(available) +
                      (alone ? " devices" : " processes, and each is one"));
  if (alone)
    return ranks_on_devices(count ? count : available);
  std::vector<weir::communicator> one;
  one.push_back(weir::communicator::from_environment());
  return one;
}

// Calls f(number) for each rank, on a thread of its own, until all have returned.
// Throws: what the first rank that failed has thrown. The others do not wait for it any longer.
inline void run_ranks(std::vector<weir::communicator>& ranks, std::function<void(std::size_t)> const& f) {
  std::exception_ptr cause;
  std::once_flag failed;
  std::vector<std::thread> threads;
  weir::runtime& machine = weir::runtime::current();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      weir::runtime_guard const in(machine);
      weir::device_guard const on(ranks[i].device());
      try {
        f(i);
      } catch (...) {
        std::call_once(failed, [&] { cause = std::current_exception(); });  // what follows from it comes later
        ranks[i].abort();
      }
    });
  }
  for (std::thread& t : threads)
    t.join();
  if (cause)
    std::rethrow_exception(cause);
}

}  // namespace examples
