// How many NVLinks two GPUs share, where NVIDIA's management library can tell:
// it is found at run time, and nothing hangs on it.
// Threads: any.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weir::peer {

struct nvlink_end {                                   // of one active NVLink of a device, the other one
  enum class is : std::uint8_t { gpu, fabric } what;  // fabric: a switch, through which every device on it is reached
  std::string pci_bus_id;                             // of a gpu
};
// Links that lead straight to the other device; else as many as both have to the fabric.
int nvlinks_between(std::vector<nvlink_end> const& of_first, std::string const& first,
                    std::vector<nvlink_end> const& of_second, std::string const& second);

// Asked once for each device. Empty: none, or not known. Blocks: the first call loads the library, some 20 ms
std::vector<nvlink_end> nvlink_ends(std::string const& pci_bus_id);

}  // namespace weir::peer
