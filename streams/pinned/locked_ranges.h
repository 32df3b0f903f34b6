// Memory of the program's own whose pages registered_host_memory has locked: each range is known until the
// driver has unlocked it. What the driver refuses to unlock is tried again before the next range is locked or
// unlocked, and when the runtime ends.
// Threads: any.
#pragma once
#include <vector>

#include "runtime/base/byte_range.h"
#include "runtime/core/parts.h"
#include "runtime/observe/external_memory.h"

namespace weir::streams {

class locked_ranges {  // a part of the runtime
 public:
  explicit locked_ranges(runtime::impl& r) : runtime_(r), books_(r.part<observe::memory_beside>()) {}
  ~locked_ranges();  // Blocks: as unlock. Unlocks what is left: a registered_host_memory may outlive its runtime
  // `first`, `bytes`: whole pages around `own`. Throws: bad_alloc; nothing is locked then
  driver::status lock(void* first, std::size_t bytes, base::byte_range own, source_location);
  void unlock(void* first) noexcept;  // Blocks: until all work of all devices is done

 private:
  // refused: the driver did not unlock it; tried: by one thread, now
  enum class state : std::uint8_t { locked, refused, tried };
  struct range {
    void* first;
    state is;
  };
  void try_refused() noexcept;
  void try_unlock(void* first) noexcept;  // Requires: tried, by this thread
  void forget(void* first) noexcept;

  runtime::impl& runtime_;
  observe::memory_beside& books_;
  base::guarded<std::vector<range>> all_;  // the lock is held over no driver call
};

}  // namespace weir::streams
