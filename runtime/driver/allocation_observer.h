// An observer of what no driver call shows: the blocks, and the waits that weir inserts.
// Threads: any, also with locks held. The calls are short, make no driver call and take no lock of weir.
#pragma once
#include <span>

#include "runtime/driver/driver.h"
#include "weir/types.h"

namespace weir::driver {

class allocation_observer {
 public:
  virtual ~allocation_observer() = default;

  struct user {  // a stream of the driver interface
    int device = -1;
    stream_handle stream = stream_handle::none;
  };

  // The program has made this stream, or leased it from the runtime's pool.
  virtual void stream_made(user, source_location) = 0;
  // These bytes are now a block of `home`. stream none: of no stream, and earlier use is complete; device -1:
  // host memory. Called before any other thread knows the block.
  virtual void allocated(user home, address, std::size_t bytes, source_location) = 0;
  // The block at this address, or around it, waits at its free for work of that stream.
  virtual void marked(user, address) = 0;
  // The block is freed: its next use comes after all work enqueued on streams `behind` so far, and after that of others
  // it was marked for. Called before its memory can be reused, and before its stamps are taken.
  virtual void freed(address, std::size_t bytes, std::span<user const> behind, source_location) = 0;
  // The program got the handle of this stream, or of an event, with which it can give work to CUDA itself.
  virtual void stream_handed_out(user) = 0;
  virtual void event_handed_out(event_handle) = 0;
  // The block now belongs to `to`, which already waits for the block's earlier use.
  virtual void handed_over(user to, address, std::size_t bytes, source_location) = 0;
  // weir inserted a wait on its own: `waiter` waits for `other`'s use of these bytes.
  virtual void wait_inserted(user waiter, user other, address, std::size_t bytes) = 0;
  // The program asked `waiter` (none: the host) to wait for `other`, and no call was made: it was ordered.
  virtual void relied_on(user waiter, user other) = 0;
};

}  // namespace weir::driver
