// weir/observe.h: torch's counters, and where the memory is.
// Threads: any; each answer is one consistent moment.
#pragma once
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

}  // namespace weir
