// Memory that is shared with other processes, as links know it: peers are let into it as a whole.
// Threads: any.
#pragma once
#include <array>
#include <cstdint>

#include "runtime/core/parts.h"
#include "runtime/observe/external_memory.h"

namespace weir::peer {

class openable_memory {
 public:
  // Every handle of that device, or the one in which the address lies, is open to these devices, a bit each, but
  // those that are lost. A handle that comes later asks links::readers() whom it is open to.
  virtual driver::status open_to(int device, std::uint64_t readers) = 0;
  virtual driver::status open_to(void const* inside, int reader) = 0;
  virtual std::size_t forget_idle() noexcept { return 0; }  // bytes given back of what no work of this process uses

 protected:
  ~openable_memory() = default;
};

// A part of the runtime: what this process exports and imports, each from when there is some.
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
