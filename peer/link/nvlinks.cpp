// NVML, loaded by symbol name: needs no header, and without the library nothing is known.
// Threads: any; NVML is thread-safe.
#include "peer/link/nvlinks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/os_library.h"
#include "runtime/base/sync.h"

namespace weir::peer {
namespace {

struct pci_info {  // nvmlPciInfo_t
  std::array<char, 16> legacy;
  unsigned domain, bus, device, pci_device, pci_subsystem;
  std::array<char, 32> bus_id;
};
struct nvml_library {
  using handle = void*;
  int (*init)() = nullptr;
  int (*by_bus)(char const*, handle*) = nullptr;
  int (*state)(handle, unsigned link, unsigned* active) = nullptr;
  int (*remote)(handle, unsigned link, pci_info*) = nullptr;
  int (*remote_kind)(handle, unsigned link, unsigned* kind) = nullptr;
  bool works = false;
};
constexpr unsigned most_links = 36, kind_gpu = 0, kind_switch = 2;

nvml_library const& nvml() {
  static nvml_library const* const once = [] {
    auto* const found = new nvml_library;  // never destroyed: threads may call it while the process ends
    void* const library = os::load_library("libnvidia-ml.so.1");
    // Sets the function. Returns: whether the library has it
    auto const find = [&](auto& function, char const* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(library ? os::find_symbol(library, name) : nullptr);
      return function != nullptr;
    };
    found->works = find(found->init, "nvmlInit_v2") && find(found->by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
                   find(found->state, "nvmlDeviceGetNvLinkState") &&
                   find(found->remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2") && found->init() == 0;
    find(found->remote_kind, "nvmlDeviceGetNvLinkRemoteDeviceType");  // older libraries have none
    return found;
  }();
  return *once;
}

// "00000000:1B:00.0" and "0000:1b:00.0" name the same device.
std::string plain(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c); });
  auto const colon = bus_id.find(':');
  auto const digit = bus_id.find_first_not_of('0');
  return digit == std::string::npos || colon == std::string::npos ? bus_id : bus_id.substr(std::min(digit, colon));
}

}  // namespace

int nvlinks_between(std::vector<nvlink_end> const& of_first, std::string const& first,
                    std::vector<nvlink_end> const& of_second, std::string const& second) {
  auto const straight = [](std::vector<nvlink_end> const& ends, std::string const& other) {
    return std::count_if(ends.begin(), ends.end(), [&](nvlink_end const& e) {
      return e.what == nvlink_end::is::gpu && plain(e.pci_bus_id) == plain(other);
    });
  };
  auto const to_fabric = [](std::vector<nvlink_end> const& ends) {
    return std::count_if(ends.begin(), ends.end(),
                         [](nvlink_end const& e) { return e.what == nvlink_end::is::fabric; });
  };
  auto const direct = std::min(straight(of_first, second), straight(of_second, first));
  return static_cast<int>(direct ? direct : std::min(to_fabric(of_first), to_fabric(of_second)));
}

std::vector<nvlink_end> nvlink_ends(std::string const& pci_bus_id) {
  std::vector<nvlink_end> ends;
  auto const& api = nvml();
  nvml_library::handle device = nullptr;
  if (!api.works || api.by_bus(pci_bus_id.c_str(), &device) != 0)
    return ends;
  for (unsigned link = 0; link < most_links; ++link) {
    unsigned active = 0;
    if (api.state(device, link, &active) != 0 || !active)
      continue;
    unsigned kind = kind_gpu;
    pci_info remote{};
    bool const knows_kind = api.remote_kind && api.remote_kind(device, link, &kind) == 0;
    bool const knows_place = api.remote(device, link, &remote) == 0;
    if (knows_kind && kind == kind_switch)
      ends.push_back({nvlink_end::is::fabric, {}});
    else if (knows_place)
      ends.push_back({nvlink_end::is::gpu,
                      std::string(remote.bus_id.data(), strnlen(remote.bus_id.data(), remote.bus_id.size()))});
    else
      ends.push_back({nvlink_end::is::fabric, {}});  // hidden switches: the other end is unknown
  }
  return ends;
}

}  // namespace weir::peer
