// weir/observe.h: memory snapshots, and their files: for PyTorch's viewer, and as an HTML page.
// Threads: any.
#include "runtime/report/page.h"
#include "streams/report/recording.h"
#include "streams/stream/context.h"
#include "weir/device.h"

namespace weir {

std::vector<memory_segment> memory_snapshot(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  return streams::segments_of(r, streams::resolve(on, r, "memory_snapshot", at));
}

void dump_memory_snapshot(std::string const& path, source_location at) {
  auto const all = streams::take_recording(streams::current_runtime(at));
  streams::write_file(path, report::snapshot(all.devices, all.stacks, "weir:" + runtime::current(at).description()),
                      "dump_memory_snapshot", at);
}

void dump_memory_page(std::string const& path, std::string const& title, source_location at) {
  auto const all = streams::take_recording(streams::current_runtime(at));
  streams::write_file(
      path,
      report::page(all.devices, all.stacks, title.empty() ? "Memory of " + runtime::current(at).description() : title),
      "dump_memory_page", at);
}

}  // namespace weir
