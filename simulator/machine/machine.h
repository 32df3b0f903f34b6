// The simulated machine: devices, streams and memory of this process behind the driver seam.
// See docs/simulated-machine.md.
// Threads: as the seam, except the controls of `stepped` machines, which belong to one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/driver/driver.h"
#include "weir/runtime.h"

namespace weir::base {
class relay;
}
namespace weir::driver {
class faulty;
}

namespace weir::driver::sim {

struct freedom_taken {
  std::string_view name;   // "F2 shared connections"
  std::uint64_t times = 0;
};

// What a test may do to a simulated machine. weir/sim.h offers it to users.
class controls {
 public:
  virtual ~controls() = default;
  // stepped: runs the stream's next operation; false: nothing can run
  virtual bool step(int device, stream_handle) = 0;
  virtual bool run() = 0;                 // until all is done or all wait; true: all done
  virtual std::string stuck() const = 0;  // after run() answered false: the circle of streams and events, in words
  // the k-th from now of that seam call ("map", "create", … or "any") is refused with that code; k = 1 is the
  // next. Returns: its number, for cancel_failure; 0: no such call, or k is 0
  virtual std::uint64_t fail_call(std::string_view call, std::uint64_t k, code) = 0;
  virtual bool cancel_failure(std::uint64_t number) = 0;               // Returns: it was still to come
  virtual void clear_failures() = 0;
  virtual faulty& refusing() noexcept = 0;                             // where these are kept
  virtual void lose_device(int device) = 0;                            // a sticky error, now
  virtual void disconnect(int from, int to) = 0;                       // the peer link from -> to vanishes
  // the peer link from -> to changes bytes from now on; the driver goes on offering it
  virtual void corrupt(int from, int to) = 0;
  virtual void consume_memory(int device, std::size_t bytes) = 0;      // another process takes room
  virtual std::uint64_t seed() const noexcept = 0;
  // of every choice and operation so far; equal seeds and calls give equal hashes. Threads: 0
  virtual std::uint64_t trace_hash() const noexcept = 0;
  virtual std::vector<freedom_taken> freedoms_taken() const = 0;  // F1 to F10, and how often the machine has taken each
  // misuse seen: use of unmapped or ungranted memory, a host that waits for what cannot come
  virtual std::vector<std::string> findings() const = 0;
  virtual base::relay* host_threads() noexcept = 0;  // seeded: those whose order the seed chooses. Null: not here
  // all that is alive, by name: reservations, handles, mappings, segments, pins, streams, events,
  // closed gates. Empty: nothing leaked
  virtual std::vector<std::string> census() const = 0;
  // this thread makes a call past the seam that CUDA holds to be unsafe while a stream is captured; false: it
  // met a capture, which is spoiled
  virtual bool unsafe_call() = 0;
  // Guarded: the host is kept away from pinned bytes that work reads or writes,
  // until unshield of the number. 0: it is not.
  virtual std::uint64_t shield(touch const&) = 0;
  virtual void unshield(std::uint64_t number) = 0;
  // Calls `look`, which reads those pinned bytes for the checker: no shield keeps it away.
  virtual void look_behind_shields(touch const&, std::function<void()> const& look) = 0;
  // Those pages of a pin hold nothing but pinned memory of the program: work that does not declare them is
  // kept away. Guarded machines that move inside calls.
  virtual void confine_work_from(touch const& pages) = 0;
  // called as the machine is destroyed; the environment's WEIR_SIM_CENSUS=1 prints it
  virtual void at_end(std::function<void(std::vector<std::string> const& census)>) = 0;
};

struct made {
  std::unique_ptr<driver> machine;
  controls* control;  // lives as long as machine
};
// `visible`: which of its devices the process sees, in its order, as CUDA_VISIBLE_DEVICES says; empty: all.
made make(simulated const&, std::vector<int> visible = {});
controls* controls_of(driver&) noexcept;  // null: a real machine

}  // namespace weir::driver::sim
