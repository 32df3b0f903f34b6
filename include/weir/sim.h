// weir/sim.h: holding the simulated machine in your hands. For your tests as much as for ours.
// Threads: any; stepping a machine belongs to one thread at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/runtime.h"
#include "weir/stream.h"

namespace weir {
namespace driver::sim {
class controls;
}

class simulation {  // a view of a runtime's machine: valid while the runtime is
 public:
  // Throws: invalid_use on a real machine
  static simulation of(runtime&, source_location = source_location::current());

  // The next piece of work of this stream. Returns: false when nothing can run. Throws:
  // invalid_use when threads move it
  bool step(stream_ref, source_location = source_location::current());
  // until all is done. Throws: invalid_use naming the circle when all that is left waits
  void run(source_location = source_location::current());
  // scheduling::seeded: a host thread that the seed switches, at every driver call, lock, wait and sleep of
  // weir. `body` runs as on a thread with this runtime current, and so does the caller from the first of
  // these until join(). All else that calls the machine meanwhile is refused.
  // Locks of one's own must not be held where weir is called.
  // Throws: invalid_use (not seeded; a thread that is none of this machine's; an empty function)
  void spawn(std::string name, std::function<void()> body, source_location = source_location::current());
  // Blocks: until all of them have ended. Requires: before the runtime ends.
  // Throws: what one of them threw; invalid_use naming who waits for whom, when all that is left waits
  void join(source_location = source_location::current());
  // The k-th of that seam call from now is refused, once: "map", "create", "copy", … or "any"; k = 1 is the
  // next. Calls that take memory answer "out of memory", others "failed".
  // Returns: its number, for cancel_failure.
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, source_location = source_location::current());
  bool cancel_failure(std::uint64_t number);  // Returns: false when it has been refused already
  void clear_failures();                      // all that were ordered and did not come yet
  void lose_device(device, source_location = source_location::current());  // a sticky error, now
  // the peer link from -> to vanishes
  void disconnect(device from, device to, source_location = source_location::current());
  // that link changes bytes from now on, and the driver goes on offering it
  void corrupt(device from, device to, source_location = source_location::current());
  // another process takes room
  void consume_memory(device, size_t bytes, source_location = source_location::current());
  std::uint64_t seed() const noexcept;
  // of all choices and operations so far: equal seeds and calls give equal hashes
  std::uint64_t trace_hash() const noexcept;
  // What the machine itself saw: memory used that is not mapped or not granted, a host that waits for what
  // cannot come. Races are in race_reports() of weir/observe.h, with options::check_races.
  std::vector<std::string> findings() const;

 private:
  simulation(runtime&, driver::sim::controls&) noexcept;
  int ordinal(device, std::string_view operation, source_location) const;
  runtime* runtime_;
  driver::sim::controls* controls_;
};

}  // namespace weir
