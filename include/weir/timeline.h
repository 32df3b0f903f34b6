// weir/timeline.h: records device work over time, for Perfetto (ui.perfetto.dev) and chrome://tracing.
// Threads: any; a profile_range belongs to one thread.
#pragma once
#include <string>
#include <string_view>

#include "weir/types.h"

namespace weir WEIR_API {

// Names a part of the program in the timeline and in NVTX tools (Nsight Systems).
// Requires: the ranges of one thread are nested.
class [[nodiscard]] profile_range {
 public:
  explicit profile_range(std::string_view name, source_location = source_location::current());
  ~profile_range();
  profile_range(profile_range const&) = delete;

 private:
  void* open_ = nullptr;  // null: no timeline is recorded
};

struct timeline_options {
  size_t spans = size_t{1} << 18;  // the newest ones are kept
};
// Starts recording and discards what was recorded before. Off by default. Records copies, launches, fills,
// collectives, waits (on the host, and on the device by timing events of about 2 us each), ranges and
// allocations. Starts a memory history if none is recorded.
void record_timeline(timeline_options = {}, source_location = source_location::current());
void stop_timeline();  // keeps what was recorded
// Writes the records of the current runtime's devices and of all threads as trace-event JSON.
// Blocks: until the recorded work is complete. Throws: invalid_use (the file cannot be written, and why).
void dump_timeline(std::string const& path, source_location = source_location::current());
// Returns, for each device of the current runtime, how long its streams copied, computed, ran collectives and
// waited; of copies and of collectives how much overlapped kernels, and the line of the longest others. A
// collective's time has its wait for other ranks, a graph counts as a kernel. Blocks: as dump_timeline.
std::string timeline_summary(source_location = source_location::current());

}  // namespace weir
