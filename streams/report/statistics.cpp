// weir/observe.h: statistics of the current runtime and device.
// Threads: any.
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "runtime/report/summary.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/report/recording.h"
#include "streams/stream/context.h"
#include "weir/device.h"
#include "weir/observe.h"

namespace weir {
namespace {

int ordinal(device on, char const* operation, source_location at) {
  return streams::resolve(on, streams::current_runtime(at), operation, at);
}
// Null: the device was never used. A query creates no context.
memory::allocator* used(device on, char const* operation, source_location at) {
  int const d = ordinal(on, operation, at);
  memory::device_memory* const m = streams::current_runtime(at).part_if_made<memory::device_memory>();
  return m ? m->if_made(d) : nullptr;
}
// null: nothing was ever shared or registered
observe::external_memory* external(source_location at) {
  return streams::current_runtime(at).part_if_made<observe::external_memory>();
}

}  // namespace

memory_statistics memory_stats(device on, source_location at) {
  memory::allocator const* const a = used(on, "memory_stats", at);
  memory_statistics out = a ? a->statistics() : memory_statistics{};
  if (auto const* const its = external(at))
    its->add_to(ordinal(on, "memory_stats", at), out);
  return out;
}

size_t memory_allocated(device on, source_location at) {
  return static_cast<size_t>(memory_stats(on, at).allocated_bytes.all.current);
}
size_t max_memory_allocated(device on, source_location at) {
  return static_cast<size_t>(memory_stats(on, at).allocated_bytes.all.peak);
}
size_t memory_reserved(device on, source_location at) {
  return static_cast<size_t>(memory_stats(on, at).reserved_bytes.all.current);
}
size_t max_memory_reserved(device on, source_location at) {
  return static_cast<size_t>(memory_stats(on, at).reserved_bytes.all.peak);
}

memory_statistics pinned_memory_stats(source_location at) {
  streams::pinned_memory const* const p = streams::current_runtime(at).part_if_made<streams::pinned_memory>();
  return p ? p->statistics() : memory_statistics{};
}

void reset_peak_memory_stats(device on, source_location at) {
  if (memory::allocator* const a = used(on, "reset_peak_memory_stats", at))
    a->reset_peak();
  if (auto* const its = external(at))
    its->reset_peak(ordinal(on, "reset_peak_memory_stats", at));
}
void reset_accumulated_memory_stats(device on, source_location at) {
  if (memory::allocator* const a = used(on, "reset_accumulated_memory_stats", at))
    a->reset_accumulated();
  if (auto* const its = external(at))
    its->reset_accumulated(ordinal(on, "reset_accumulated_memory_stats", at));
}

memory_report current_memory_report(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  return r.part<memory::device_memory>().on(streams::resolve(on, r, "current_memory_report", at), at).report();
}

std::vector<stream_memory_use> memory_by_stream(device on, source_location at) {
  memory::allocator const* const a = used(on, "memory_by_stream", at);
  return a ? a->by_stream() : std::vector<stream_memory_use>{};
}

std::string memory_summary(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  memory::allocator const& a = r.part<memory::device_memory>().on(streams::resolve(on, r, "memory_summary", at), at);
  memory_report const now = a.report();
  return report::summary(memory_stats(on, at), now, a.by_stream(), a.by_pool());
}

std::string memory_metrics(source_location at) {
  std::vector<report::measured> all;
  for (int d = 0, n = device_count(at); d < n; ++d)
    all.push_back({device(d).str(), memory_stats(d, at), streams::pools_of(streams::current_runtime(at), d)});
  all.push_back({"cpu", pinned_memory_stats(at)});
  return report::metrics(all);
}

}  // namespace weir
