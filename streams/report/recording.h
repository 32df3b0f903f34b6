// The recorded history and current memory, in the form that files need.
// Threads: any.
#pragma once
#include <vector>

#include "runtime/report/snapshot.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace weir::streams {

// record_memory_history(), without an effect if a history is recorded.
void record_history_if_off(history_options, source_location);

// By address. Blocks of `device` have their source line, if the history knows it.
std::vector<memory_segment> segments_of(runtime::impl&, int device);
std::vector<pool_memory_use> pools_of(runtime::impl&, int device);

struct recording {
  std::vector<report::device_snapshot> devices;
  std::vector<report::stack_of> stacks;  // of the traces, by number
};
recording take_recording(runtime::impl&);

// Throws: invalid_use (the file cannot be written, with the reason)
void write_file(std::string const& path, std::string_view bytes, char const* operation, source_location);

}  // namespace weir::streams
