// The links of a machine as `nvidia-smi topo -m` draws them.
// Threads: any.
#pragma once
#include <string>
#include <vector>

#include "weir/device.h"
#include "weir/peer.h"

namespace weir::tool {

// What a copy passes between two devices that sit on PCIe: PIX, PXB, PHB, NODE or SYS, from the folders of
// the system's tree of devices ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; empty: not known) and
// the NUMA nodes (-1: not known).
std::string path_between(std::string const& folder_a, int node_a, std::string const& folder_b, int node_b);
// A row a device, a legend of what occurs, and a line about what has been verified.
std::string draw(std::vector<device_properties> const&, std::vector<peer_link> const&);

}  // namespace weir::tool
