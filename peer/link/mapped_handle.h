// A handle of physical memory, mapped in this process.
// Threads: one at a time, except granted().
#pragma once
#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "runtime/observe/external_memory.h"

namespace weir::peer {

// Returned step by step: a step that the driver refuses is tried again later.
class mapped_handle {
 public:
  mapped_handle() noexcept = default;
  mapped_handle(driver::driver& m, driver::memory_handle h, std::size_t bytes) noexcept
      : machine_(&m), handle_(h), bytes_(bytes) {}
  mapped_handle(mapped_handle&& other) noexcept { *this = std::move(other); }
  mapped_handle& operator=(mapped_handle&&) noexcept;  // Requires: nothing is left of this one
  driver::status map(std::size_t alignment);
  driver::status grant(int device);  // Requires: no other thread grants it
  bool granted(int device) const noexcept { return readers_.load() >> device & 1; }
  // Requires: no work uses it. Returns: true if all is returned.
  bool give_back() noexcept;
  // Registers the handle until it is unmapped. Requires: mapped
  void known_to(observe::external_memory&, int device, observe::sharing) noexcept;
  void* data() const noexcept { return reinterpret_cast<void*>(at_); }
  driver::memory_handle handle() const noexcept { return handle_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  driver::driver* machine_ = nullptr;
  driver::memory_handle handle_ = driver::memory_handle::none;
  driver::address at_ = 0;
  std::size_t bytes_ = 0;
  base::atomic<std::uint64_t> readers_{0};  // a bit a device
  bool mapped_ = false;
  observe::external_memory* books_ = nullptr;  // counts the handle; null: none
  int counted_for_ = -1;
  observe::sharing counted_as_ = observe::sharing::exported;
};

}  // namespace weir::peer
