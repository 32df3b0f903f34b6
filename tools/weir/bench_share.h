// Rows of weir bench share: for each row, the steps of both processes, in lockstep.
// Threads: one in each process.
#pragma once
#include <string>
#include <vector>

#include "peer/share/exports.h"
#include "raw_calls.h"
#include "weir/share.h"

namespace weir::tool {

// One of the two processes. `line` is weir's channel; `plain` is a socket for the driver's own calls and for
// synchronization.
struct share_half {
  share_channel line;
  peer::owned_file plain;
  int device;    // the device that copies; shared memory is on gpu:0
  size_t bytes;  // of a large buffer
  int rounds;
  stream on{weir::device(device)};
  raw_calls raw{};

  driver::driver& machine() const;
  void say(std::uint64_t, int file = -1) const;                // Throws: peer_disconnected, timed_out
  std::uint64_t hear(peer::owned_file* file = nullptr) const;  // Throws: peer_disconnected, timed_out
};

struct share_samples {  // measured by this process, one per round
  std::vector<double> weir{}, raw{};
};
struct share_row {
  std::string name;
  size_t bytes;      // per buffer
  char const* unit;  // "us": host time per call; "GB/s": throughput that the reader measures
  char const* note;
  void (*owner)(share_half&, size_t bytes, share_samples&);
  void (*reader)(share_half&, size_t bytes, share_samples&);
};
std::vector<share_row> share_rows(size_t large);

}  // namespace weir::tool
