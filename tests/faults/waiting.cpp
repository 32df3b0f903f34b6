// Programs in which time passes: pinned pages that are returned after an idle time (pinned_idle).
// Threads: a thread a rank, the caller the first, switched by
// the seed where it moves the machine; else the system's.
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "tests/faults/heap.h"
#include "tests/faults/scenario.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/peer.h"
#include "weir/sim.h"

namespace weir::faults {
namespace {

// Runs part(k) on its own thread, the first on the caller's, because only there heap and system calls fail. A
// thread that throws calls give_up(), which ends the others' waits.
// Throws: the first exception, after all threads have ended.
void on_threads(
    int n, std::function<void(int)> const& part, std::function<void()> const& give_up = [] {}) {
  runtime& in = runtime::current();
  std::atomic<bool> any{false};
  std::exception_ptr first;
  auto const guarded = [&](auto const& body) {
    bool threw = false;
    try {
      body();
    } catch (...) {
      threw = true;
      if (!any.exchange(true))
        first = std::current_exception();
    }
    if (threw)
      give_up();
  };
  if (in.get().machine().moves_by_itself()) {
    std::vector<std::thread> all;
    guarded([&] {
      for (int k = 1; k < n; ++k) {
        all.emplace_back([&, k] {
          guarded([&] {
            runtime_guard const here_too(in);
            part(k);
          });
        });
      }
      part(0);
    });
    for (auto& t : all)
      t.join();
  } else {
    heap::paused const quiet;  // the thread scheduler allocates for the machine at each switch
    auto machine = simulation::of(in);
    guarded([&] {
      for (int k = 1; k < n; ++k)
        machine.spawn("part " + std::to_string(k), [&, k] { guarded([&] { part(k); }); });
      part(0);
    });
    guarded([&] { machine.join(); });
  }
  if (first)
    std::rethrow_exception(first);
}

std::string bytes_of(void const* device_memory, std::size_t n) {
  std::string host(n, 0);
  copy(host.data(), device_memory, n);
  return host;
}

std::vector<device> devices(int n) {
  std::vector<device> all;
  for (int d = 0; d < n; ++d)
    all.emplace_back(d);
  return all;
}

}  // namespace

std::string pinned_pages_go_back() {
  std::string seen;
  on_threads(2, [&](int k) {  // two threads, so that time is the machine's
    if (k != 0)
      return;
    auto ranks = communicator::create_all(devices(2));
    buffer const there(100'000, {.on = device(0)}), other(100'000, {.on = device(1)});
    fill(other.data(), std::byte{3}, other.size());
    for (int round = 0; round < 3; ++round) {
      {
        buffer const large = pinned(1'500'000);
        std::memset(large.data(), 7 + round, large.size());
        copy(there.data(), large.data(), there.size(), non_blocking);
        copy(large.data(), there.data(), there.size());
        seen.append(large.data<char>(), 100);
      }
      base::sleep_ns(4'000'000);  // longer than pinned_idle and its polling interval
      if (round == 1) {           // pages stay during a collective
        ranks[0].broadcast({there.data(), 1000, uint8}, 1);
        ranks[1].broadcast({other.data(), 1000, uint8}, 1);
      }
      buffer const small = pinned(100);
      copy(small.data(), there.data(), 100);
      seen.append(small.data<char>(), 100);
    }
    seen += bytes_of(other.data(), 100);  // only a call on the waiting device reports the lost one
  });
  return seen;
}

}  // namespace weir::faults
