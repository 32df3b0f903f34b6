// weir/device.h: torch.cuda's device functions. The current device is weir's and per thread; weir::set_device
// sets CUDA's too, a bare cudaSetDevice is not seen by weir (asking CUDA would cost more than an allocation).
// Threads: any. `gpu` means the calling thread's current device; every thread begins with gpu:0.
#pragma once
#include "weir/runtime.h"

namespace weir {

struct device_properties {
  std::string name;
  size_t total_memory = 0;  // bytes
  int major = 0, minor = 0, multi_processor_count = 0;
  int numa_node = -1;  // of the host memory nearest to it; -1: not known
  std::string pci_bus_id, uuid;
  bool simulated = false;
};
struct memory_info {  // bytes, of the whole device, other processes included
  size_t free = 0, total = 0;
};

bool is_available() noexcept;  // a GPU, real or simulated. false also where device_count() throws
// Honours CUDA_VISIBLE_DEVICES, on simulated devices too. Makes no context.
// Throws: invalid_use (WEIR_CONF, WEIR_DEVICES:
// a word that is none), not_supported (WEIR_DEVICES=cuda without a usable GPU)
int device_count(source_location = source_location::current());
device current_device(source_location = source_location::current());

// The calling thread's current device from now on, for weir and for CUDA.
// Makes the device's context. cpu: no effect.
// Throws: invalid_use (no such device), device_lost, driver_error; the current device is as it was then
void set_device(device, source_location = source_location::current());
// makes no context. Throws: invalid_use (cpu, no such device)
device_properties get_device_properties(device = gpu, source_location = source_location::current());
// Throws: invalid_use (cpu, no such device), device_lost
memory_info mem_get_info(device = gpu, source_location = source_location::current());
// Blocks: host, until all work of all streams of the device is done, that of streams weir does not know too.
// Throws: invalid_use (cpu, no such device), device_lost
void synchronize(device = gpu, source_location = source_location::current());

namespace detail {
struct guard_mark {  // where a guard stands in the pile of its thread
  std::uint64_t thread = 0, number = 0, runtime = 0;
};
}  // namespace detail

// with torch.cuda.device(1):   sets the current device and restores what it found. cpu: no effect.
// Guards are meant to end on the thread that made them, the youngest first. One that ends too early restores
// nothing yet: what it found is restored when the younger ones have ended. One that ends on another thread
// leaves the thread that made it as it is until that thread's next older guard ends,
// or the next that it makes later. Both are counted.
class [[nodiscard]] device_guard {
 public:
  explicit device_guard(device, source_location = source_location::current());  // Throws: as set_device
  ~device_guard();
  device_guard(device_guard const&) = delete;

 private:
  detail::guard_mark mark_;
};

}  // namespace weir
