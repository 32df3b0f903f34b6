// weir/stats.h: counters and reports as plain values, which out_of_memory can carry.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "weir/types.h"

namespace weir WEIR_API {
// torch's four values; allocated and freed only grow, until reset. Exact peaks: docs/explanation/memory.md
struct statistic {
  std::int64_t current, peak, allocated, freed;
};
// small: up to 32 KiB, in slabs
struct statistic_by_size {
  statistic all, small, large;
};
// Recovery steps, in order, when neither the stream's cache nor the driver can serve an allocation. The last
// is a retry for memory that other threads freed meanwhile.
inline constexpr std::array<std::string_view, 9> recovery_steps{"pending blocks",
                                                                "complete blocks of other streams",
                                                                "blocks behind a device wait",
                                                                "blocks in caches of threads",
                                                                "free pages returned to the device",
                                                                "out-of-memory callbacks",
                                                                "waited for the oldest fence",
                                                                "room between blocks of any stream",
                                                                "another look"};

// reserved = allocated + pending + cached holds in each of all, small and large (asserted).
struct memory_statistics {
  statistic_by_size allocation;       // live blocks
  statistic_by_size segment;          // handles held from the driver; all count as large, slabs lie inside them
  statistic_by_size active;           // live or pending blocks
  statistic_by_size inactive;         // free blocks of mapped memory outside slabs (torch's inactive_split)
  statistic_by_size allocated_bytes;  // of live blocks, rounded
  statistic_by_size requested_bytes;  // of live blocks, as requested
  statistic_by_size reserved_bytes;   // held from the driver
  statistic_by_size active_bytes;     // live or pending
  statistic_by_size pending_bytes;    // freed, while marked streams may still use them
  statistic_by_size cached_bytes;     // held from the driver and unused (torch's inactive_split_bytes)
  // pages held for memory that other processes may open (weir/share.h); not in reserved_bytes
  statistic exported_bytes;
  statistic imported_bytes;  // of other processes' memory on that device, mapped here
  // part of reserved_bytes that other devices may access, by block or by enable_peer_access()
  std::uint64_t peer_access_bytes;
  std::uint64_t num_ooms, num_alloc_retries;
  // retries that found memory, by the recovery step that did
  std::array<std::uint64_t, recovery_steps.size()> recovered_by;
  std::uint64_t cache_hits;              // allocations without a driver call
  std::uint64_t fences, waits_inserted;  // events recorded and device waits inserted for memory reuse only
  // waits for a fence recorded only on demand, which also covers all work enqueued until then
  std::uint64_t late_waits;
  std::uint64_t pages_mapped;   // handles created
  std::uint64_t handles_moved;  // to other addresses, instead of growth
  std::uint64_t bound_width;    // bytes past the bound of options::epsilon that moves have bought
  // torch's keys in torch's order, with weir's own among them
  std::vector<std::pair<std::string, std::int64_t>> flat() const;
};
struct stream_memory_use {  // one stream's memory on one device; stream 0: of all that share pages
  std::uint64_t stream;
  size_t allocated, pending, cached;  // bytes: live, rounded; freed and still in use elsewhere; free
  size_t largest_free;                // bytes of one block
  struct waiting {
    std::uint64_t stream;
    size_t bytes;
  };
  std::vector<waiting> waits_for;  // pending bytes by the stream that uses them
};
struct pool_memory_use {   // one pool's memory (weir/pool.h)
  std::uint64_t pool = 0;  // number, unique in the process; 0: what pools left that ended with live blocks
  std::string name;
  size_t limit = 0;                               // bytes of `reserved`; 0: none
  size_t reserved = 0, max_reserved = 0;          // bytes held from the driver
  size_t allocated = 0, pending = 0, cached = 0;  // bytes; reserved = allocated + pending + cached
  std::int64_t blocks = 0;                        // live
  size_t asleep = 0;  // bytes that pool::sleep wrote or dropped; none of them is in the numbers above
};
// What a stream could allocate now, in blocks of 32 KiB and more; less: slabs may still serve small ones.
struct headroom {
  size_t largest;  // bytes of one block; 0: no block of 32 KiB
  // bytes of several: what no live block's page holds, and free ranges of 32 KiB and more beside live blocks
  size_t bytes;
};
// Why an allocation failed.
enum class memory_cause : std::uint8_t {
  none,         // nothing failed: the report answers a query
  too_large,    // the request exceeds the device's memory
  limit,        // the limit forbids it
  in_use,       // live blocks hold the memory
  survivors,    // enough bytes are free, but live blocks keep their handles in place
  pending,      // work that is not done still uses freed memory
  outside,      // other processes or libraries hold the memory
  shared,       // exported memory (weir/share.h)
  driver,       // the driver refused although the memory should be there
  addresses,    // no range of addresses is long enough
  host,         // host memory is short
  pool_limit,   // the limit of the request's pool forbids it
  share_limit,  // the limit of the request's share_pool forbids it
};
std::string_view name(memory_cause) noexcept;  // "survivors"
struct recovery_step {
  std::string_view name;
  size_t gave_bytes;
  std::int64_t ns;
};
struct memory_report {  // of one failed allocation, or of the moment of a query
  device on = gpu;
  // other_processes: all memory that is not reserved, with CUDA's own, libraries' and exported_bytes
  size_t requested, rounded, capacity, other_processes, limit, allocated, pending, reserved, largest_free;
  std::vector<recovery_step> recovery;
  size_t exported = 0;  // part of other_processes that this process holds to share (weir/share.h)
  // of page-locked memory without a limit: host memory available, and the share that weir leaves to others
  size_t host_available = 0, host_kept = 0;
  size_t driver_reserve = 0;  // bytes of the device that weir leaves to the driver (options::driver_reserve)
  memory_cause cause = memory_cause::none;
  // freed memory by the stream whose work still uses it, the most bytes first
  std::vector<stream_memory_use::waiting> waits_for;
  // At most three lines of the program, the most bytes first. survivors: free bytes that blocks of that line
  // keep in place. limit, in_use, pool_limit: bytes in live blocks (of the pool). Empty without
  // record_memory_history().
  struct holder {
    source_location where;
    size_t bytes;
  };
  std::vector<holder> holders;
  pool_memory_use pool = {};  // that the request was for, of a share_pool, too; no name: none
  std::string text() const;   // for people; ends with the likeliest remedies
};
}
