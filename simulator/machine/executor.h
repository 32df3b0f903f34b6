// A schedule decides who moves next on a simulated machine.
// Threads: every call is made with the machine's lock held; the ones that wait give it up meanwhile.
#pragma once
#include <memory>

#include "simulator/machine/schedule_policy.h"
#include "simulator/machine/tape.h"
#include "simulator/machine/work.h"

namespace weir::driver::sim {

enum class outcome : std::uint8_t { done, lost, stuck };  // lost: its device is, or another that it waits for

class schedule {
 public:
  virtual ~schedule() = default;
  // what runs its work is there from now on. false: the system has no more threads
  virtual bool make_ready(int /*device*/) { return true; }
  virtual habit by() const { return habit::undecided; }                // chosen by a seed
  // an operation was appended. Gives up the lock. false: there was no room, and its device is lost now
  virtual bool given(base::unique_lock&, stream&) = 0;
  virtual void changed(base::unique_lock&) = 0;  // a gate opened, or work may have become ready. Gives up the lock
  virtual void asked(stream&, std::uint64_t position) = 0;             // somebody is about to look whether this is done
  // Blocks: until that is done, or never can be
  virtual outcome until(base::unique_lock&, stream&, std::uint64_t position) = 0;
  virtual void pause() = 0;         // before a call that may block until all work is done
  virtual void before_unmap() = 0;  // running work comes to its end
  virtual bool step(stream&) = 0;   // its next operation, whole; false: it cannot
  // of some stream that can, looking round from there. Gives up the lock. false: none
  virtual bool move_one(base::unique_lock&, std::uint32_t /*from*/) { return false; }
  virtual bool run(base::unique_lock&) = 0;                            // until nothing moves; true: all done
};

std::unique_ptr<schedule> make_crew(queues&);             // two workers a device and one for host functions
std::unique_ptr<schedule> make_stepper(queues&);          // nothing moves but by step, run or a host that waits
std::unique_ptr<schedule> make_wanderer(queues&, tape&);  // the tape chooses

}  // namespace weir::driver::sim
