// A witness is told of what no driver call shows:
// which bytes are a block, from when to when, and which waits are weir's own.
// Threads: any. Calls are short, make no driver call and take no lock of weir's;
// they may be made with locks held.
#pragma once
#include <span>

#include "runtime/driver/driver.h"
#include "weir/types.h"

namespace weir::driver {

class allocation_observer {
 public:
  virtual ~allocation_observer() = default;

  struct user {  // a stream, as the seam names it
    int device = -1;
    stream_handle stream = stream_handle::none;
  };
  struct waits_for {
    std::span<user const> behind;   // its next owner comes after all that these streams were given so far
    std::span<user const> counted;  // whose use is waited for by an exact stamp
  };

  // From now on these bytes are a block of that stream. stream none: of no stream, what was done with them
  // before is complete; device -1: of the host.
  // Called before the block is known to anybody else.
  virtual void allocated(user home, address, std::size_t bytes, source_location) = 0;
  // The block is given back. Called before anybody else may have its memory,
  // and before the stamps are taken that it waits for.
  virtual void freed(address, std::size_t bytes, waits_for, source_location) = 0;
  // The block is another stream's from now on; that stream was made to wait for what the block was used for.
  virtual void handed_over(user to, address, std::size_t bytes, source_location) = 0;
  // A wait that nobody asked for was just inserted:
  // `waiter` for the work of `other` that these bytes were used for, to have them.
  virtual void wait_inserted(user waiter, user other, address, std::size_t bytes) = 0;
  // The program asked for order after `other`'s work (waiter none:
  // for its completion), and no call was made: it was known.
  virtual void relied_on(user waiter, user other) = 0;
};

}  // namespace weir::driver
