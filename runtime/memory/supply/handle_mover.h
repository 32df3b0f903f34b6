// Moves a free handle to where memory is needed. Its old address range stays mapped as an alias.
// Threads: any. Holds one heap's lock to look and to note, then the aliases' lock; never over a driver call.
//
// Invariant: an alias lies in one unmapped or one reserved block. All work that used the handle there is
// ordered before all work that uses the handle now. In a graph's pool it is reserved, and mapped, until the pool
// ends: launches use it.
#pragma once
#include <string>
#include <vector>

#include "runtime/memory/heap/heap_table.h"
#include "runtime/memory/space/physical_memory.h"

namespace weir::memory {

class handle_mover {
 public:
  explicit handle_mover(device_context& of) : of_(of) {}

  // Reserves a range of at least `bytes`. thorough: as arena::plan
  bool plan(session&, std::size_t bytes, std::size_t alignment, arena::zone, growth_plan&, bool thorough);
  // for each alias in the plan: switches its handle back, or unmaps it
  driver::status clear_aliases(stream_heap& mine, growth_plan&, physical_memory::batch&);
  // Maps a handle whose address range is reserved at `to`, too, which becomes its address.
  driver::status remap(stream_heap& from, released&, address to, physical_memory::batch&);
  // unmaps all but the newest `spared` aliases of a handle. Requires: no lock, its address range reserved
  bool drop_aliases(aliased_handle const&, int spared);
  void retry_stuck() noexcept { aliases_.retry_stuck(); }  // plans may use places again that the driver refused once
  alias_table::places take_all() noexcept { return aliases_.take_all(); }  // at the end
  void validate(excluded const&, std::vector<std::string>& wrong, std::string const& subject) const;

 private:
  struct onlooker;
  bool swap_with_alias(stream_heap& mine, alias&, physical_memory::batch&);
  // The handle moves to `to`, and its old place becomes an alias. back: the alias that lies at `to`; null: none does.
  // Returns: the handle, which lives in the batch
  aliased_handle const& detach(session& from, released const&, alias* back, address to, physical_memory::batch&);

  device_context& of_;
  alias_table aliases_;
};

}  // namespace weir::memory
