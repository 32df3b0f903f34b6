// The links of a machine in the format of `nvidia-smi topo -m`.
// Threads: any.
#pragma once
#include <string>
#include <vector>

#include "weir/device.h"
#include "weir/peer.h"

namespace weir::tool {

// Returns: the kind of path between two devices on PCIe: PIX, PXB, PHB, NODE or SYS. Arguments: the devices'
// sysfs folders ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; empty: unknown) and NUMA nodes (-1:
// unknown).
std::string path_between(std::string const& folder_a, int node_a, std::string const& folder_b, int node_b);
// Returns: a row per device, a legend of the kinds that occur, and a line about verified links.
std::string draw(std::vector<device_properties> const&, std::vector<peer_link> const&);

}  // namespace weir::tool
