// weir/timeline.h: what a program did with its devices, by time:
// a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
// Threads: any; a range belongs to one.
#pragma once
#include <string>
#include <string_view>

#include "weir/types.h"

namespace weir {

// A part of the program, named in the timeline and to tools that listen to NVTX (Nsight Systems).
// Ranges of a thread lie in each other.
class [[nodiscard]] profile_range {
 public:
  explicit profile_range(std::string_view name, source_location = source_location::current());
  ~profile_range();
  profile_range(profile_range const&) = delete;

 private:
  void* open_ = nullptr;  // null: no timeline is recorded
};

struct timeline_options {
  size_t spans = size_t{1} << 18;  // the newest are kept
};
// From now on: copies, launches, fills, collectives and waits, on the host's side and when the device did
// them (by timing events: about 2 us each), ranges, and allocations: with it a history of memory begins,
// where there is none. Off until it is asked for.
// anew: what was recorded before is forgotten
void record_timeline(timeline_options = {}, source_location = source_location::current());
void stop_timeline();                         // and what was recorded stays to be written
// Of the current runtime's devices and all threads, as trace-event JSON. Blocks:
// until the devices have done what was recorded.
// Throws: invalid_use (the file cannot be written, and why)
void dump_timeline(std::string const& path, source_location = source_location::current());
// Of each device: how long its streams copied, computed and waited, and what of the copies went on while a
// kernel ran; and the line whose copies were longest alone. Of the current runtime. Blocks: as dump_timeline
std::string timeline_summary(source_location = source_location::current());

}  // namespace weir
