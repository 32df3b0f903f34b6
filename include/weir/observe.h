// weir/observe.h: torch's counters, and where the memory is.
#pragma once
#include <filesystem>
#include <iosfwd>
#include "weir/runtime.h"

namespace weir {
size_t memory_allocated(device = gpu); size_t max_memory_allocated(device = gpu);
size_t memory_reserved(device = gpu);  size_t max_memory_reserved(device = gpu);
[[deprecated("torch renamed it: memory_reserved")]] size_t memory_cached(device = gpu);
[[deprecated("torch renamed it: max_memory_reserved")]] size_t max_memory_cached(device = gpu);
memory_statistics memory_stats(device = gpu); memory_statistics pinned_memory_stats();
void reset_peak_memory_stats(device = gpu); void reset_accumulated_memory_stats(device = gpu);
std::string memory_summary(device = gpu);
memory_report memory_report_now(device = gpu);
std::string memory_metrics();                                   // Prometheus text 0.0.4

struct history_options { size_t events = 1 << 16; bool stacks = false; };
void record_memory_history(history_options = {}); void stop_memory_history();
void dump_snapshot(std::filesystem::path const&);               // PyTorch's pickle, for its memory viewer
void dump_timeline(std::filesystem::path const&);               // trace events, for Perfetto
std::string memory_by_line(device = gpu);
class memory_tracker { public: explicit memory_tracker(std::ostream&); void track(here = here::current()); };  // what appeared and vanished since the last line
class [[nodiscard]] range { public: explicit range(std::string_view name); ~range(); range(range const&) = delete; };  // NVTX and timeline
}
