// weir/stats.h: plain values; below everything, so that out_of_memory can carry them.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "weir/types.h"

namespace weir {
// torch's four; the last two only ever grow, until reset. How exact a peak is: docs/memory.md
struct statistic { std::int64_t current, peak, allocated, freed; };
struct statistic_by_size { statistic all, small, large; };      // small: up to 32 KiB, from a slab
// Where an allocation looks for memory that neither its stream's cache nor the driver has, in this order; at
// last, for what other threads left meanwhile.
inline constexpr std::array<std::string_view, 8> recovery_steps{
    "pending blocks", "complete blocks of other streams", "blocks behind a device wait", "blocks in caches of threads",
    "free pages returned to the device", "out-of-memory callbacks", "waited for the oldest fence", "another look"};

// reserved = allocated + pending + cached, in each of all, small and large (asserted, and printed so)
struct memory_statistics {
  statistic_by_size allocation;       // live blocks
  statistic_by_size segment;          // pieces of memory held of the driver; all count as large, slabs lie inside them
  statistic_by_size active;           // live or pending blocks
  statistic_by_size inactive;         // pieces of mapped memory nobody uses, outside slabs (torch's inactive_split)
  statistic_by_size allocated_bytes;  // of live blocks, rounded
  statistic_by_size requested_bytes;  // of live blocks, as asked
  statistic_by_size reserved_bytes;   // held of the driver
  statistic_by_size active_bytes;     // live or pending
  statistic_by_size pending_bytes;    // given back, while streams they were marked for may still use them
  statistic_by_size cached_bytes;     // held of the driver and used by nobody (torch's inactive_split_bytes)
  // whole pages held for memory that other processes may open (weir/share.h); reserved_bytes are without them
  statistic exported_bytes;
  statistic imported_bytes;      // of other processes' memory of that device, mapped here
  // of reserved_bytes, those in handles that other devices may use:
  // granted block by block, or by enable_peer_access()
  std::uint64_t peer_access_bytes;
  std::uint64_t num_ooms, num_alloc_retries;
  // of these retries, those that found memory: by the rung that did it
  std::array<std::uint64_t, recovery_steps.size()> recovered_by;
  std::uint64_t cache_hits;              // allocations that asked nothing of the driver
  std::uint64_t fences, waits_inserted;  // events recorded, and device waits, for the sake of memory alone
  // of these waits, those for a fence recorded only when somebody asked:
  // behind all that stream had been given by then
  std::uint64_t late_waits;
  std::uint64_t pages_mapped;            // pieces of memory asked of the driver
  // torch's keys in torch's order; weir's own among them
  std::vector<std::pair<std::string, std::int64_t>> flat() const;
};
struct stream_memory_use {  // what one stream's allocations draw from, of one device
  std::uint64_t stream;
  size_t allocated, pending, cached;  // bytes: live, rounded; given back and still in use elsewhere; free
  size_t largest_free;                // bytes, of one piece
  struct waiting { std::uint64_t stream; size_t bytes; };
  std::vector<waiting> waits_for;     // pending bytes by the stream that holds them
};
struct recovery_step { std::string_view name; size_t gave_bytes; std::int64_t ns; };
struct memory_report {  // of one failed, or asked-for, moment
  device on = gpu;
  // other_processes: all that is not reserved: also CUDA's own memory, libraries', and exported_bytes
  size_t requested, rounded, capacity, other_processes, limit, allocated, pending, reserved, largest_free;
  std::vector<recovery_step> recovery;
  size_t exported = 0;  // of other_processes: what this process holds to share (weir/share.h)
  // of page-locked memory without a limit of one's own:
  // what the host had available, and what of that weir leaves to others
  size_t host_available = 0, host_kept = 0;
  std::string text() const;  // what a person reads; ends in the likeliest remedies
};
}
