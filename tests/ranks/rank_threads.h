// The ranks of several processes, played by threads of this one: each has a runtime of its own.
// Threads: as each says.
#pragma once
#include <exception>
#include <thread>
#include <vector>

#include "tests/peer/ranks.h"

namespace weir::test {

// Runs body(communicator) as each rank. Rethrows the first exception in order of rank, unless `caught` is given.
template <class Body>
void as_ranks(int size, Body body, rank_options o = {.start = std::chrono::seconds(20)},
              std::vector<std::string>* caught = nullptr) {
  std::string const id = communicator::unique_id();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        runtime machine(simulated{.devices = 1, .memory = 64_MiB});
        runtime_guard const in(machine);
        auto c = communicator::create(id, rank, size, device(0), o);
        body(c);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& t : threads)
    t.join();
  if (caught)
    caught->assign(failures.size(), "");
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i])
      continue;
    if (!caught)
      std::rethrow_exception(failures[i]);
    try {
      std::rethrow_exception(failures[i]);
    } catch (std::exception const& e) {
      (*caught)[i] = e.what();
    }
  }
}

}  // namespace weir::test
