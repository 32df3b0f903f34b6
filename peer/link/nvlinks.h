// Number of NVLinks between two GPUs, from NVML, loaded at run time. weir works without it.
// Threads: any.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weir::peer {

struct nvlink_end {                                   // the far end of one active NVLink of a device
  enum class is : std::uint8_t { gpu, fabric } what;  // fabric: a switch that reaches every device on it
  std::string pci_bus_id;                             // of a gpu
};
// Direct links; if there are none, the smaller number of links to the fabric.
int nvlinks_between(std::vector<nvlink_end> const& of_first, std::string const& first,
                    std::vector<nvlink_end> const& of_second, std::string const& second);

// Empty: none or unknown. Blocks: the first call loads the library, about 20 ms
std::vector<nvlink_end> nvlink_ends(std::string const& pci_bus_id);

}  // namespace weir::peer
