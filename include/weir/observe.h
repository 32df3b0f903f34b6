// weir/observe.h: torch's counters, and where the memory is.
// Threads: any; each answer is one consistent moment.
#pragma once
#include <functional>
#include <vector>

#include "weir/runtime.h"

namespace weir {

// Bytes of device memory: in live blocks, rounded; and held of the driver. 0 before the first use of the device.
size_t memory_allocated(device = gpu);
size_t max_memory_allocated(device = gpu);
size_t memory_reserved(device = gpu);
size_t max_memory_reserved(device = gpu);
[[deprecated("torch renamed it: memory_reserved")]] size_t memory_cached(device = gpu);
[[deprecated("torch renamed it: max_memory_reserved")]] size_t max_memory_cached(device = gpu);

memory_statistics memory_stats(device = gpu);  // .flat() has torch's keys
memory_statistics pinned_memory_stats();       // page-locked host memory, of all devices
void reset_peak_memory_stats(device = gpu);         // peaks start again from what is current
void reset_accumulated_memory_stats(device = gpu);  // what was allocated and freed so far counts from zero again

// A table of about ten lines whose byte columns add up: reserved = allocated + pending + cached.
std::string memory_summary(device = gpu);
// Where the device's memory is now, with the remedies of an out_of_memory.
memory_report memory_report_now(device = gpu);

// What options::check_races found in the current runtime: a defect of the program, seldom of weir. The same program gives
// the same reports whatever the order its devices chose. Empty without check_races.
struct race_report {
  std::string kind;      // "race", "use after free", "freed in use", "source changed", "stuck"; of weir: "handed out too early", "unmapped in use"
  std::string text;      // which bytes of which block, both uses with line and stream, the remedy
  here first, second;    // file null: not known, or there is only one
  std::uint64_t times;   // seen at these two places
};
std::vector<race_report> race_reports();  // all so far. What nobody asks for is printed when the runtime or the process ends
// Throws: race_found with the first report, if there is one
void require_no_races(here = here::current());
// Called for each new report, on the thread that made the call it was found in; it calls nothing of weir. An empty one ends it.
void on_race(std::function<void(race_report const&)>);

}  // namespace weir
