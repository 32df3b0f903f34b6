// The physical memory of one device on its way: handles made for one growth, and those the driver kept.
// Threads: any. No lock is held over a driver call.
//
// Invariant: charged = bytes of handles + bytes of growth under way + bytes that the driver would not take back.
#pragma once
#include <map>
#include <vector>

#include "runtime/memory/blocks/alias_table.h"
#include "runtime/memory/space/device_context.h"
#include "runtime/memory/space/mapping_lock.h"

namespace weir::memory {

class physical_memory {
 public:
  explicit physical_memory(device_context& of) : of_(of) {}

  struct batch {
    std::vector<handle> handles;              // made for it
    std::map<address, homed_handle> places;   // for them, and for those that were not made
    std::map<address, homed_handle> arrived;  // moved here from elsewhere
    // one of them behind work that is ordered before the stream's next, perhaps not complete
    bool arrived_ordered = false;
    std::size_t charged = 0;   // bytes, of the handles made and of one that could not be mapped
    std::size_t orphaned = 0;  // bytes the driver would not take back: they stay charged
  };
  void release(driver::memory_handle, std::size_t bytes, batch&);  // refused: it is an orphan, tried again later
  // Takes back what was made. Ensures: `handles` is what is still mapped, because the driver refused even that.
  void undo(batch&);
  std::size_t return_orphans();  // bytes that the driver has back
  std::size_t orphaned_bytes() const;

  traffic changes;  // handles come and go, or stay while all of them are looked at

 private:
  device_context& of_;
  base::guarded<std::vector<handle>> orphans_;  // unmapped, but the driver would not take them back yet
};

}  // namespace weir::memory
