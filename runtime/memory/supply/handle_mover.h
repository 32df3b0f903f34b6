// Moves a free handle to where memory is wanted. The old place stays mapped as an alias (a ghost).
// Threads: any. One heap's lock to look and to note, then the aliases' own; never over a driver call.
//
// Invariant: an alias lies in one gap or a reserved block. What used the handle there is ordered before what
//            the handle holds now.
#pragma once
#include <string>
#include <vector>

#include "runtime/memory/heap/heap_table.h"
#include "runtime/memory/space/physical_memory.h"

namespace weir::memory {

class handle_mover {
 public:
  explicit handle_mover(device_context& of) : of_(of) {}

  // A place for so many bytes, reserved. Requires: the heap's lock
  bool plan(stream_heap&, std::size_t bytes, std::size_t alignment, arena::part, growth_plan&, bool thorough);
  // in the plan's window: their handles come home, or they are unmapped
  driver::status lay_ghosts(stream_heap& mine, growth_plan&, physical_memory::batch&);
  // Maps a handle whose home is reserved at another place, too, which becomes its home.
  driver::status move_home(stream_heap& from, released&, address to, physical_memory::batch&);
  // all but so many of a handle's. Requires: no lock, its home reserved
  bool drop_ghosts(homed_handle const&, int spared);
  ghosts::places take_all() noexcept { return ghosts_.take_all(); }  // at the end
  void validate(stream_heap const&, std::vector<std::string>& wrong,
                std::string const& who) const;  // Requires: the lock

 private:
  struct onlooker;
  bool come_home(stream_heap& mine, ghost&, physical_memory::batch&);
  void leave_home(stream_heap& from, piece& place, std::map<address, homed_handle>::iterator, ghost* back, address to,
                  physical_memory::batch&);

  device_context& of_;
  ghosts ghosts_;
};

}  // namespace weir::memory
