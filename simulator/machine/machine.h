// The simulated machine of this process, behind the driver interface (docs/reference/simulated-machine.md).
// Threads: as the driver interface. The controls of a `stepped` machine belong to one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/driver/driver.h"
#include "weir/runtime.h"

namespace weir::base {
class thread_scheduler;
}
namespace weir::driver {
class fault_injector;
}

namespace weir::driver::sim {

struct freedom_taken {
  std::string_view name;  // "F2 shared connections"
  std::uint64_t times = 0;
};

// What a test may do to a simulated machine. weir/sim.h has the public version.
class WEIR_LOCAL controls {
 public:
  virtual ~controls() = default;
  // stepped: runs the stream's next operation. false: nothing can run
  virtual bool step(int device, stream_handle) = 0;
  virtual bool run() = 0;                 // until all is done or all waits; true: all done
  virtual std::string stuck() const = 0;  // after run() returned false: the circle of streams and events, as text
  // Refuses the k-th call from now (1: the next) of that driver function ("map", "create", … or "any").
  // Returns: the number for cancel_failure; 0: unknown name, or k is 0
  virtual std::uint64_t fail_call(std::string_view call, std::uint64_t k, code) = 0;
  virtual bool cancel_failure(std::uint64_t number) = 0;  // Returns: whether it was pending
  virtual void clear_failures() = 0;
  virtual fault_injector& refusing() noexcept = 0;  // where these are kept
  virtual void lose_device(int device) = 0;         // a sticky error, now
  virtual void disconnect(int from, int to) = 0;    // removes the peer link from -> to
  // the peer link from -> to corrupts bytes from now on; the driver still offers it
  virtual void corrupt(int from, int to) = 0;
  virtual void consume_memory(int device, std::size_t bytes) = 0;  // simulates another process
  virtual std::uint64_t seed() const noexcept = 0;
  // of all choices and operations; equal seeds and calls give equal hashes. 0 with scheduling::threads
  virtual std::uint64_t trace_hash() const noexcept = 0;
  virtual std::vector<freedom_taken> freedoms_taken() const = 0;  // F1 to F10, with counts
  // misuse so far: use of unmapped or ungranted memory, a host wait that cannot end
  virtual std::vector<std::string> findings() const = 0;
  virtual base::thread_scheduler* host_threads() noexcept = 0;  // the scheduler of host threads. Null: not seeded
  // all live objects: reservations, handles, mappings, segments, pins, streams, events, closed gates
  virtual std::vector<std::string> census() const = 0;
  // This thread makes a direct CUDA call that is unsafe during a capture. false: it spoiled a capture
  virtual bool unsafe_call() = 0;
  // Guarded machines: protects pinned bytes that work uses from the host. Returns: 0 if it cannot
  virtual std::uint64_t shield(touch const&) = 0;
  virtual void unshield(std::uint64_t number) = 0;
  // Calls `look`, which reads those pinned bytes for the checker, with their shields open.
  virtual void look_behind_shields(touch const&, std::function<void()> const& look) = 0;
  // Those pages of a pin hold only pinned memory: work can reach them only if it declares them. Only on
  // guarded machines that move inside calls.
  virtual void confine_work_from(touch const& pages) = 0;
  // Called when the machine is destroyed. With WEIR_SIM_CENSUS=1 the machine prints the census itself.
  virtual void at_end(std::function<void(std::vector<std::string> const& census)>) = 0;
};

struct made {
  std::unique_ptr<driver> machine;
  controls* control;  // lives as long as machine
};
// `visible`: the devices that the process sees, in order, as CUDA_VISIBLE_DEVICES does. Empty: all.
made make(simulated const&, std::vector<int> visible = {});
controls* controls_of(driver&) noexcept;  // null: not simulated

}  // namespace weir::driver::sim
