// A seeded machine and the scheduler of its host threads, for the tests of the scheduler.
// Threads: those of the scheduler.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "simulator/machine/machine.h"
#include "simulator/threads/thread_scheduler.h"
#include "tests/support/seeds.h"

namespace weir::tests {

inline seeds orders(std::uint64_t n) {
  return {"relay", n};
}
// Enough to say in how many something is found.
inline bool many(seeds const& s) {
  return s.count() >= 100;
}

// A seeded machine with one device and the scheduler of its host threads.
struct scheduled_rig {
  explicit scheduled_rig(std::uint64_t seed)
      : made(driver::sim::make(
            {.devices = 1, .memory = 1_MiB, .schedule = simulated::scheduling::seeded, .seed = seed})),
        threads(*made.control->host_threads()) {
    machine().open(0);
    threads.enter("main", base::thread_scheduler::life::until_left);
  }
  driver::driver& machine() { return *made.machine; }
  void run(std::vector<std::function<void()>> bodies) {
    int number = 0;
    for (auto& b : bodies)
      threads.spawn(std::string(1, static_cast<char>('a' + number++)), std::move(b));
    why_over = threads.join();
  }
  std::vector<std::string> findings() { return made.control->findings(); }

  driver::sim::made made;
  base::thread_scheduler& threads;
  std::string why_over;
};

}  // namespace weir::tests
