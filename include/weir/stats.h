// weir/stats.h: plain values; below everything, so that out_of_memory can carry them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "weir/types.h"

namespace weir {
struct stat { std::int64_t current, peak, allocated, freed; };  // torch's four
struct stat_by_size { stat all, small, large; };
struct memory_statistics {  // bytes; reserved = allocated + pending + cached (asserted, and printed so)
  stat_by_size allocation, segment, active, inactive;                        // counts
  stat_by_size allocated_bytes, requested_bytes, reserved_bytes, active_bytes, pending_bytes, cached_bytes;
  std::uint64_t num_ooms, num_alloc_retries, fences, waits_inserted, pages_mapped, pages_moved, cache_hits;
  std::vector<std::pair<std::string, std::int64_t>> flat() const;            // torch's keys, in torch's order
};
struct rung { std::string_view name; size_t gave_bytes; std::int64_t ns; };
struct memory_report {  // of one failed, or asked-for, moment
  device on = gpu;
  size_t requested, rounded, capacity, other_processes, limit, allocated, pending, reserved, largest_hole;
  std::vector<rung> ladder;
  std::string text() const;  // what a person reads; ends in the likeliest remedies
};
}
