// Memory shared with other processes, as links see it: opened to peers as a whole.
// Threads: any.
#pragma once
#include <array>
#include <cstdint>

#include "runtime/core/parts.h"
#include "runtime/observe/external_memory.h"

namespace weir::peer {

class openable_memory {
 public:
  // Opens every handle of the device, or the handle that contains the address, to these devices (a bit each),
  // except lost ones. A later handle queries links::readers().
  virtual driver::status open_to(int device, std::uint64_t readers) = 0;
  virtual driver::status open_to(void const* inside, int reader) = 0;
  virtual std::size_t forget_idle() noexcept { return 0; }  // returns memory unused by this process; Returns: bytes

 protected:
  ~openable_memory() = default;
};

// A part of the runtime: exported and imported memory, each null until first used.
class shared_memory {
 public:
  explicit shared_memory(runtime::impl&) {}
  openable_memory* of(observe::sharing kind) const noexcept { return at(kind).load(base::memory_order_acquire); }
  void set(observe::sharing kind, openable_memory* m) noexcept { at(kind).store(m, base::memory_order_release); }

 private:
  base::atomic<openable_memory*>& at(observe::sharing kind) const noexcept {
    return at_[kind == observe::sharing::exported ? 0 : 1];
  }
  mutable std::array<base::atomic<openable_memory*>, 2> at_{};
};

}  // namespace weir::peer
