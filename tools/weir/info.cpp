// weir info: describes the machine that a program would run on, and the reason for that choice.
// Threads: one.
#include <cstdio>
#include <cstdlib>

#include "command_line.h"
#include "commands.h"
#include "runtime/options/options.h"
#include "topology.h"

namespace weir::tool {
namespace {

void print_json(std::vector<device_properties> const& all) {
  std::printf("{\"schema\": \"weir.info/1\", \"version\": %s, \"machine\": %s, \"simulated\": %s, \"devices\": [",
              json_text(version_line()).c_str(), json_text(runtime::current().description()).c_str(),
              runtime::current().is_simulated() ? "true" : "false");
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const& p = all[i];
    auto const m = mem_get_info(static_cast<int>(i));
    std::printf(
        "%s{\"device\": \"gpu:%zu\", \"name\": %s, \"free_bytes\": %zu, \"total_bytes\": %zu, \"compute\": \"%d.%d\", "
        "\"multiprocessors\": %d, \"pci\": %s, \"numa_node\": %d}",
        i ? ", " : "", i, json_text(p.name).c_str(), m.free, m.total, p.major, p.minor, p.multi_processor_count,
        json_text(p.pci_bus_id).c_str(), p.numa_node);
  }
  std::printf("], \"links\": [");
  bool first = true;
  for (peer_link const& l : links()) {
    if (l.by == peer_link::kind::self)
      continue;
    std::printf(
        "%s{\"from\": \"%s\", \"to\": \"%s\", \"nvlinks\": %d, \"access\": %s, \"verified\": %s, \"wrong\": %s}",
        first ? "" : ", ", l.from.str().c_str(), l.to.str().c_str(), l.nvlinks, l.access ? "true" : "false",
        l.verified ? "true" : "false", l.wrong ? "true" : "false");
    first = false;
  }
  std::printf("]}\n");
}

}  // namespace

int info(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  bool json = false;
  po::options_description known("weir info: the machine that a program gets here");
  known.add_options()("devices", po::value(&devices),
                      "auto | cuda | sim[:N[:SIZE]][:seed=S] (default: WEIR_DEVICES, else auto)")(
      "json", po::bool_switch(&json), "one line of JSON")("help,h", "this text");
  if (!understood(arguments, known))
    return 0;
  use_devices(devices);
  int const count = device_count();
  std::vector<device_properties> all;
  for (int i = 0; i < count; ++i)
    all.push_back(get_device_properties(i));
  if (json) {
    print_json(all);
    return count > 0 ? all_well : finding;
  }
  std::printf("%s\n%s\n", version_line().c_str(), runtime::current().description().c_str());
  for (int i = 0; i < count; ++i) {
    auto const& p = all[static_cast<std::size_t>(i)];
    auto const m = mem_get_info(i);
    std::printf("gpu:%d  %s, %s free of %s", i, p.name.c_str(), bytes_text(m.free).c_str(),
                bytes_text(m.total).c_str());
    if (!p.simulated)
      std::printf(", compute %d.%d, %d multiprocessors, %s", p.major, p.minor, p.multi_processor_count,
                  p.pci_bus_id.c_str());
    if (p.numa_node >= 0)
      std::printf(", NUMA node %d", p.numa_node);
    std::printf("\n");
  }
  if (count > 1)
    std::printf("links: the device of a row accesses memory of the device of a column\n%s", draw(all, links()).c_str());
  return count > 0 ? all_well : finding;
}

}  // namespace weir::tool
