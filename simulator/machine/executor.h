// A schedule decides which stream of a simulated machine moves next.
// Threads: the caller holds the machine's lock; calls that take it release it while they wait.
#pragma once
#include <memory>

#include "simulator/machine/schedule_policy.h"
#include "simulator/machine/tape.h"
#include "simulator/machine/work.h"

namespace weir::driver::sim {

inline constexpr int most_devices = 64;

enum class outcome : std::uint8_t { done, lost, stuck };  // lost: its device, or one it waits for

class executor {
 public:
  virtual ~executor() = default;
  // Makes the threads that run the device's work. false: the system has no more threads
  virtual bool make_ready(int /*device*/) { return true; }
  // The process ends: no further operation begins. Blocks: until those that run are over, at most 10 s
  virtual void stop() noexcept {}
  virtual schedule_policy by() const { return schedule_policy::undecided; }  // chosen by a seed
  // An operation was appended. Releases the lock. false: the queue had no room, and the device is lost now
  virtual bool given(base::unique_lock&, stream&) = 0;
  virtual void changed(base::unique_lock&) = 0;             // a gate opened, or work may be ready. Releases the lock
  virtual void asked(stream&, std::uint64_t position) = 0;  // the host is about to query this position
  // Blocks: until the position is done, or never can be
  virtual outcome until(base::unique_lock&, stream&, std::uint64_t position) = 0;
  virtual void pause() = 0;         // before a call that may block until all work is done
  virtual void before_unmap() = 0;  // ends running work
  virtual bool step(stream&) = 0;   // runs the whole next operation; false: it cannot run
  // one step of a stream that can move, searched from `from`. Releases the lock. false: none
  virtual bool move_one(base::unique_lock&, std::uint32_t /*from*/) { return false; }
  virtual bool run(base::unique_lock&) = 0;  // until nothing moves; true: all done
};

std::unique_ptr<executor> make_threaded_executor(queues&);       // two workers a device, one for host functions
std::unique_ptr<executor> make_stepping_executor(queues&);       // streams move only by step, run or a waiting host
std::unique_ptr<executor> make_seeded_executor(queues&, tape&);  // the tape chooses

}  // namespace weir::driver::sim
