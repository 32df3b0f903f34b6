// The program's own memory that registered_host_memory has page-locked, listed until the driver has unlocked
// it. A refused unlock is retried before the next lock or unlock, and at the end of the runtime.
// Threads: any.
#pragma once
#include <vector>

#include "runtime/base/byte_range.h"
#include "runtime/core/parts.h"
#include "runtime/observe/external_memory.h"

namespace weir::streams {

class locked_ranges {  // a part of the runtime
 public:
  explicit locked_ranges(runtime::impl& r) : runtime_(r), books_(r.part<observe::external_memory>()) {}
  ~locked_ranges();  // Blocks: as unlock. Unlocks all: a registered_host_memory may outlive its runtime
  // `first`, `bytes`: the whole pages around `own`. Throws: bad_alloc; then nothing is locked
  driver::status lock(void* first, std::size_t bytes, base::byte_range own, source_location);
  void unlock(void* first) noexcept;  // Blocks: until all work of all devices is done

 private:
  // refused: the driver did not unlock it; tried: one thread is locking or unlocking it
  enum class state : std::uint8_t { locked, refused, tried };
  struct range {
    void* first;
    state is;
  };
  void try_refused() noexcept;
  void try_unlock(void* first) noexcept;  // Requires: this thread set it to tried
  void forget(void* first) noexcept;

  runtime::impl& runtime_;
  observe::external_memory& books_;
  base::guarded<std::vector<range>> all_;  // never held across a driver call
};

}  // namespace weir::streams
