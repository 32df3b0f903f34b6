// Spans as a sentence, and as trace-event JSON for Perfetto and chrome://tracing: host threads, streams,
// memory counters.
// Format: "Trace Event Format",
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
// Threads: any; values in, text out.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/observe/span_recorder.h"
#include "weir/observe.h"

namespace weir::report {

struct device_memory_events {
  int device = 0;
  std::vector<memory_event> events;  // oldest first
  std::int64_t live_bytes = 0;       // after the last
};
std::string trace_events(std::span<observe::span const>, std::span<device_memory_events const>);
// The share of a device's copies, and of its collectives, that ran while kernels ran.
std::string overlap(std::span<observe::span const>);

}  // namespace weir::report
