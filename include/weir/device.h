// weir/device.h: torch.cuda's device functions. The current device is weir's and per thread; weir::set_device sets
// CUDA's too, a bare cudaSetDevice is not seen by weir (asking CUDA would cost more than an allocation).
#pragma once
#include "weir/runtime.h"

namespace weir {
struct device_properties { std::string name; size_t total_memory; int major, minor, multi_processor_count, numa_node; std::string pci_bus_id, uuid; bool simulated; };
struct memory_info { size_t free, total; };                 // bytes, of the whole device

bool is_available() noexcept;                               // a GPU, real or simulated
int device_count() noexcept;                                // honours CUDA_VISIBLE_DEVICES on both drivers; makes no context
device current_device();
void set_device(device, here = here::current());
device_properties get_device_properties(device = gpu);
memory_info mem_get_info(device = gpu);
void synchronize(device = gpu, here = here::current());     // Blocks: host, until all streams of the device are done

class [[nodiscard]] device_guard {  // with torch.cuda.device(1):   cpu: no effect. Restores what it found, on the thread that made it
 public:
  explicit device_guard(device, here = here::current());
  ~device_guard();
  device_guard(device_guard const&) = delete;
 private:
  int found_;
};
}
