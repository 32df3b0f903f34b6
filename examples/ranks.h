// The ranks of this process at work, each on a thread with its device current.
// Threads: one run at a time per runtime.
#pragma once
#include <exception>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "weir/collective.h"
#include "weir/device.h"

namespace examples {

// One rank for each of the first devices.
inline std::vector<weir::communicator> ranks_on_devices(int count) {
  std::vector<weir::device> devices;
  for (int i = 0; i < count; ++i)
    devices.emplace_back(i);
  return weir::communicator::create_all(devices);
}

// Calls f(number) for each rank, on a thread of its own, until all have returned.
// Throws: what the first rank that failed has thrown. The others do not wait for it any longer.
inline void run_ranks(std::vector<weir::communicator>& ranks, std::function<void(std::size_t)> const& f) {
  std::vector<std::exception_ptr> failures(ranks.size());
  std::vector<std::thread> threads;
  weir::runtime& machine = weir::runtime::current();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      weir::runtime_guard const in(machine);
      weir::device_guard const on(ranks[i].device());
      try {
        f(i);
      } catch (...) {
        failures[i] = std::current_exception();
        ranks[i].abort();
      }
    });
  }
  for (std::thread& t : threads)
    t.join();
  // The cause, before what follows from it in other ranks.
  std::exception_ptr cause;
  for (std::exception_ptr const& failure : failures) {
    try {
      if (failure)
        std::rethrow_exception(failure);
    } catch (std::exception const& e) {
      if (!cause || std::string_view(e.what()).find("aborted this communicator") == std::string_view::npos)
        cause = failure;
    }
  }
  if (cause)
    std::rethrow_exception(cause);
}

}  // namespace examples
