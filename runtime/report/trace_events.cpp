// Process 0 is the host with one track per thread; process 1 + d is gpu:d with one track per stream. Times
// are microseconds since the first event.
#include "runtime/report/trace_events.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "runtime/base/text.h"
#include "runtime/options/options.h"

namespace weir::report {
namespace {

using base::json_text;

class events_writer {
 public:
  explicit events_writer(std::int64_t origin) : origin_(origin) {}

  void name(char const* what, int process, std::uint64_t track, std::string const& text) {
    begin(what, "M", process, track);
    out_ += ",\"args\":{\"name\":" + json_text(text) + "}}";
  }
  void span(observe::span const& s, std::int64_t from, std::int64_t to) {
    bool const is_call = s.where == observe::span::on::thread;
    int const process = is_call ? 0 : 1 + s.device;
    begin(s.name, "X", process, s.number);
    time("ts", from - origin_);
    time("dur", to - from);
    out_ += ",\"args\":{";
    bool first = true;
    if (s.bytes)
      arg(first, "bytes", std::to_string(s.bytes));
    if (s.stream)
      arg(first, is_call ? "stream" : "for stream", std::to_string(s.stream));
    if (s.at.file_name())
      arg(first, "line", json_text(base::text(s.at.file_name(), ":", s.at.line())));
    out_ += "}}";
    if (!s.link)
      return;
    // An arrow leads from the call to the first part of its work.
    if (!is_call) {
      bool const is_first_part = arrived_.insert(s.link).second;
      if (!is_first_part)
        return;
    }
    begin("given", is_call ? "s" : "f", process, s.number);
    time("ts", from - origin_);
    out_ += base::text(",\"cat\":\"given\",\"bp\":\"e\",\"id\":", s.link, "}");
  }
  void memory(int device, memory_event const& e, std::int64_t live) {
    begin(std::string(e.what) + (e.bytes ? " " + bytes_text(e.bytes) : ""), "i", 0, e.thread);
    time("ts", e.ns - origin_);
    out_ += base::text(",\"s\":\"t\",\"args\":{\"device\":", device, ",\"stream\":", e.stream, ",\"bytes\":", e.bytes,
                       ",\"address\":\"", base::address_text(e.address), '"');
    if (e.where.file_name())
      out_ += ",\"line\":" + json_text(base::text(e.where.file_name(), ":", e.where.line()));
    out_ += "}}";
    begin("memory of " + base::gpu_name(device), "C", 1 + device, 0);
    time("ts", e.ns - origin_);
    out_ += base::text(",\"args\":{\"live bytes\":", live, "}}");
  }
  std::string finish() && { return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + out_ + "\n]}\n"; }

 private:
  void begin(std::string_view name, char const* phase, int process, std::uint64_t track) {
    out_ += out_.empty() ? "\n{" : ",\n{";
    out_ += base::text("\"name\":", json_text(name), ",\"ph\":\"", phase, "\",\"pid\":", process, ",\"tid\":", track);
  }
  void time(char const* name, std::int64_t ns) {
    char text[48];
    std::snprintf(text, sizeof text, ",\"%s\":%lld.%03d", name, static_cast<long long>(ns / 1000),
                  static_cast<int>(ns % 1000));
    out_ += text;
  }
  void arg(bool& first, std::string_view name, std::string const& value) {
    out_ += (first ? "\"" : ",\"") + std::string(name) + "\":" + value;
    first = false;
  }
  std::string out_;
  std::set<std::uint64_t> arrived_;  // links whose arrow has its end
  std::int64_t const origin_;
};

std::int64_t first_time(std::span<observe::span const> spans, std::span<device_memory_events const> memory) {
  std::int64_t first = INT64_MAX;
  for (observe::span const& s : spans)
    first = std::min(first, s.begin_ns);
  for (device_memory_events const& d : memory)
    if (!d.events.empty())
      first = std::min(first, d.events.front().ns);
  return first == INT64_MAX ? 0 : first;
}

}  // namespace

namespace {
// d.live_bytes is what was live after the last event. The first loop goes back to before the first one.
void add_memory(events_writer& out, device_memory_events const& d) {
  auto const change = [](memory_event const& e) {
    auto const bytes = static_cast<std::int64_t>(e.bytes);
    return e.what == "alloc" ? bytes : e.what == "free" ? -bytes : 0;
  };
  std::int64_t live = d.live_bytes;
  for (memory_event const& e : d.events)
    live -= change(e);
  for (memory_event const& e : d.events) {
    live += change(e);
    out.memory(d.device, e, live);
  }
}
}  // namespace

std::string trace_events(std::span<observe::span const> spans, std::span<device_memory_events const> memory) {
  events_writer out(first_time(spans, memory));
  std::set<int> devices;
  std::map<std::pair<int, std::uint64_t>, std::int64_t> ends;  // of streams: their spans do not overlap
  std::set<std::uint64_t> threads;
  std::vector<observe::span const*> in_order;
  for (observe::span const& s : spans)
    in_order.push_back(&s);
  // Of spans that begin together the longest comes first: the others lie in it.
  std::stable_sort(in_order.begin(), in_order.end(), [](auto const* a, auto const* b) {
    return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
  });
  for (observe::span const* const s : in_order) {
    std::int64_t from = s->begin_ns, to = std::max(s->end_ns, from);
    if (s->where == observe::span::on::stream) {
      auto const [last, fresh] = ends.try_emplace({s->device, s->number}, from);
      if (fresh)
        out.name("thread_name", 1 + s->device, s->number, "stream " + std::to_string(s->number));
      devices.insert(s->device);
      // Times are exact to half a microsecond: a span may seem to begin before the last one's end.
      from = std::max(from, last->second), to = std::max(to, from);
      last->second = to;
    } else if (threads.insert(s->number).second) {
      out.name("thread_name", 0, s->number, "thread " + std::to_string(s->number));
    }
    out.span(*s, from, to);
  }
  for (device_memory_events const& d : memory) {
    add_memory(out, d);
    if (!d.events.empty())
      devices.insert(d.device);
  }
  out.name("process_name", 0, 0, "host");
  for (int const d : devices)
    out.name("process_name", 1 + d, 0, base::gpu_name(d));
  return std::move(out).finish();
}

}  // namespace weir::report
