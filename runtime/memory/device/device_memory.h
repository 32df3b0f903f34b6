// All devices' allocators: a part of the runtime.
// Threads: any.
#pragma once
#include "runtime/memory/device/allocator.h"

namespace weir::memory {

class device_memory {
 public:
  explicit device_memory(weir::runtime::impl&);
  ~device_memory();
  // made, and the device opened, on first use
  allocator& on(int device, source_location const& = source_location::current());
  allocator* if_made(int device) noexcept;
  // After the host has waited for work of a device: memory of it that has been free for options::device_idle goes.
  static void return_idle(weir::runtime::impl&, int device) noexcept;
  allocator* owner(void const*) noexcept;  // by address, without a search; null: not device memory of this runtime
  std::uint64_t add_callback(ladder_callback, void* state, int order);
  std::uint64_t add_waiting_callback(ladder_callback, void* state);  // called when all other waits gave nothing
  void remove_callback(std::uint64_t) noexcept;
  bool call_back(memory_report const&);      // true: a callback has freed something. Requires: no lock is held
  void set_spiller(pool_spiller*) noexcept;  // null: none
  static allocator* owner_in_process(void const*) noexcept;  // of any runtime of this process
  static bool is_alive(device_memory const*) noexcept;       // its runtime has not ended

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::memory
