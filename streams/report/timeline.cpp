// weir/timeline.h: ranges and the file.
// Threads: any.
#include "weir/timeline.h"

#include "runtime/driver/ranges.h"
#include "runtime/observe/history.h"
#include "runtime/report/trace_events.h"
#include "streams/report/recording.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"
#include "weir/device.h"

namespace weir {

profile_range::profile_range(std::string_view name, source_location at) {
  std::string const whole(name);
  if (observe::span_recorder::on())
    open_ = new observe::host_span(name, at);
  driver::push_range(whole.c_str());
}

profile_range::~profile_range() {
  delete static_cast<observe::host_span*>(open_);
  driver::pop_range();
}

void record_timeline(timeline_options o, source_location at) {
  if (o.spans == 0)
    throw invalid_use("record_timeline", "room for 0 spans", "Ask for at least 1", at, error_id{230});
  streams::record_history_if_off({.events = o.spans}, at);
  observe::span_recorder::process().start(o.spans);
}
void stop_timeline() {
  observe::span_recorder::process().stop();
}

namespace {
std::vector<observe::span> spans_of(runtime::impl& r) {
  streams::collect_timed_work(r);
  auto spans = observe::span_recorder::process().spans();
  std::erase_if(spans,
                [&](observe::span const& s) { return s.where == observe::span::on::stream && s.runtime != r.id(); });
  return spans;
}
}  // namespace

std::string timeline_summary(source_location at) {
  return report::overlap(spans_of(streams::current_runtime(at)));
}

void dump_timeline(std::string const& path, source_location at) {
  auto const spans = spans_of(streams::current_runtime(at));
  std::vector<report::device_memory_events> memory;
  for (int d = 0, n = device_count(at); d < n; ++d) {
    report::device_memory_events& its = memory.emplace_back(report::device_memory_events{d, memory_history(d, at), 0});
    for (line_statistics const& l : memory_by_line(d, at))
      its.live_bytes += l.bytes;
  }
  streams::write_file(path, report::trace_events(spans, memory), "dump_timeline", at);
}

}  // namespace weir
