// The race checker: a driver decorator that computes the order of work and reports unordered conflicts.
// Threads: as the driver interface. findings() is callable at any time.
// Throws: bad_alloc, unlike the driver interface: the checker keeps its records in host memory.
//
// It knows program order, records and waits, completion that the host saw, and blocks from the allocation observer.
// A captured graph is checked twice: part against part, and as one operation of its stream at each launch.
// Accidental completion and weir's own waits do not count as order: all schedules give equal reports.
// Host uses: those through weir (host_uses), and on a guarded machine all accesses to pages that work uses.
// Unknown: undeclared uses, direct CUDA calls, and order between ranks that only a collective makes. A
// text that says "no error" names what is unknown, too (unjudged).
// The legacy stream comes before and after the blocking streams of its device, and no other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/driver/race_control.h"
#include "simulator/checker/vector_clock.h"

namespace weir::driver::check {

// What tests ask beside it.
class test_control : public control {
 public:
  struct late_waits {
    std::uint64_t waits = 0;       // inserted by weir to reuse memory
    std::uint64_t operations = 0;  // that they cover after the last use of that memory
  };
  virtual late_waits counted() const = 0;
  virtual std::vector<std::string> census() const = 0;  // objects made through this driver and not released

  // For comparison with other clocks: the stream's current position, and facts about such positions.
  virtual epoch position(int device, stream_handle) = 0;
  virtual bool ordered(epoch, int device, stream_handle) = 0;  // before the next work of that stream
  virtual bool complete(epoch) = 0;                            // seen by the host
};

struct wrapped {
  std::unique_ptr<driver> machine;
  test_control* control;  // lives as long as machine
};
wrapped wrap(std::unique_ptr<driver>);

}  // namespace weir::driver::check
