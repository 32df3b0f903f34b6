// The rows of weir bench share: what each of the two processes does for a row, in step with the other one.
// Threads: one in each process.
#pragma once
#include <string>
#include <vector>

#include "peer/share/exports.h"
#include "raw_calls.h"
#include "weir/share.h"

namespace weir::tool {

// One of the two processes: the line, and beside it a plain socket for the driver's own calls and for keeping
// step.
struct share_half {
  share_channel line;
  peer::owned_file plain;
  int device;        // whose memory it copies to and from; what is shared is gpu:0's
  size_t bytes;      // of a large buffer
  int rounds;
  stream on{weir::device(device)};
  raw_calls raw{};

  driver::driver& machine() const;
  void say(std::uint64_t, int file = -1) const;        // Throws: peer_disconnected, timed_out
  std::uint64_t hear(peer::owned_file* file = nullptr) const;  // Throws: likewise
};

struct share_samples {  // of this half, one a round
  std::vector<double> weir{}, raw{};
};
struct share_row {
  std::string name;
  size_t bytes;          // of a buffer
  char const* unit;      // "us": of a call's time on the host; "GB/s": that the reader sees
  char const* note;
  void (*owner)(share_half&, size_t bytes, share_samples&);
  void (*reader)(share_half&, size_t bytes, share_samples&);
};
std::vector<share_row> share_rows(size_t large);

}  // namespace weir::tool
