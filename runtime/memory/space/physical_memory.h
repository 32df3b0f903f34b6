// One device's physical memory in transit: handles made for one growth, and those that the driver refused.
// Threads: any. No heap's lock is held over a driver call.
//
// Invariant: charged = bytes of handles + bytes of growth under way + bytes of orphans.
#pragma once
#include <map>
#include <vector>

#include "runtime/memory/blocks/alias_table.h"
#include "runtime/memory/space/device_context.h"
#include "runtime/memory/space/mapping_lock.h"
#include "runtime/memory/space/memory_pool.h"

namespace weir::memory {

class physical_memory {
 public:
  explicit physical_memory(device_context& of) : of_(of) {}

  struct batch {
    std::vector<handle> handles;
    std::map<address, aliased_handle> places;   // list nodes for these, and for handles that were not made
    std::map<address, aliased_handle> arrived;  // moved here from elsewhere
    clock::stream_clock const* home = nullptr;  // the stream whose next work may use them
    std::uint64_t arrived_freed = 0;            // the fence of `home` after which all use of `arrived` is complete
    std::size_t charged = 0;                    // bytes, of the handles made and of one that could not be mapped
    std::size_t of_pool = 0;           // bytes charged to the pool, of the handles made and of those from other pools
    std::size_t from_other_pools = 0;  // bytes of `arrived`
    std::size_t orphaned = 0;          // bytes that the driver refused to take back: they stay charged
  };
  // For handles to be made: the device and the pool, or neither. False: a limit or driver_reserve forbids it
  bool charge(memory_pool&, std::size_t bytes);
  void refund(memory_pool&, std::size_t bytes);                    // what was charged, and was not made
  void release(driver::memory_handle, std::size_t bytes, batch&);  // refused: kept as an orphan, tried again later
  // Unmaps and releases what was made. Ensures: `handles` has those that the driver refused to unmap.
  void undo(batch&);
  std::size_t return_orphans();  // Returns: bytes that the driver has back
  std::size_t orphaned_bytes() const;

  mapping_lock changes;  // shared while handles change, exclusive while all are examined

 private:
  device_context& of_;
  base::guarded<std::vector<handle>> orphans_;  // unmapped; the driver refused to take them back so far
};

}  // namespace weir::memory
