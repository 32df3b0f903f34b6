// weir/device.h: torch.cuda's device functions. weir keeps a current device for each thread. weir::set_device
// also sets CUDA's; weir does not see a bare cudaSetDevice (a query costs more than an allocation).
// Threads: any. `gpu` means the calling thread's current device; every thread begins with gpu:0.
#pragma once
#include "weir/runtime.h"

namespace weir WEIR_API {

struct device_properties {
  std::string name;
  size_t total_memory = 0;  // bytes
  int major = 0, minor = 0, multi_processor_count = 0;
  int numa_node = -1;  // of the nearest host memory; -1: unknown
  std::string pci_bus_id, uuid;
  bool simulated = false;
};
struct memory_info {  // bytes of the whole device, other processes included
  size_t free = 0, total = 0;
};

bool is_available() noexcept;  // a GPU, real or simulated; false if device_count() throws
// Honours CUDA_VISIBLE_DEVICES, on simulated devices too. Creates no context.
// Throws: invalid_use (unknown word in WEIR_CONF or WEIR_DEVICES), not_supported (cuda without a usable GPU)
int device_count(source_location = source_location::current());
device current_device(source_location = source_location::current());

// Sets the calling thread's current device, for weir and for CUDA, and creates its context. cpu: no effect.
// Throws: invalid_use (no such device), device_lost, driver_error. The current device is then unchanged.
void set_device(device, source_location = source_location::current());
// Creates no context. Throws: invalid_use (cpu, no such device)
device_properties get_device_properties(device = gpu, source_location = source_location::current());
// Throws: invalid_use (cpu, no such device), device_lost
memory_info mem_get_info(device = gpu, source_location = source_location::current());
// Waits for all work of all streams of the device, including streams unknown to weir. Blocks: host.
// Throws: invalid_use (cpu, no such device), device_lost
void synchronize(device = gpu, source_location = source_location::current());

namespace detail {
struct guard_mark {  // a guard's place in its thread's stack of guards
  std::uint64_t thread = 0, number = 0, runtime = 0;
};
}  // namespace detail

// Sets the current device and restores the previous one, as with torch.cuda.device(1). cpu: no effect.
// Requires: guards end on their thread, the youngest first. A guard that ends too early restores nothing
// until the younger guards have ended. A guard that ends on another thread leaves its own thread unchanged
// until that thread's next older or next new guard ends. weir counts both errors.
class [[nodiscard]] device_guard {
 public:
  explicit device_guard(device, source_location = source_location::current());  // Throws: as set_device
  ~device_guard();
  device_guard(device_guard const&) = delete;

 private:
  detail::guard_mark mark_;
};

}  // namespace weir
