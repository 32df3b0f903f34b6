// weir info: describes the machine that a program would run on, and the reason for that choice.
// Threads: one.
#include <cstdio>
#include <cstdlib>

#include "command_line.h"
#include "commands.h"
#include "runtime/options/options.h"
#include "topology.h"

namespace weir::tool {
int info(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  po::options_description known("weir info: the machine a program would get here");
  known.add_options()("help,h", "this text")("devices", po::value(&devices),
                                             "auto | cuda | sim[:N[:GiB]]; WEIR_DEVICES, else auto");
  if (!understood(arguments, known)) return 0;
  use_devices(devices);
  std::printf("%s\n", runtime::current().description().c_str());
  int const count = device_count();
  std::vector<device_properties> all;
  for (int i = 0; i < count; ++i) {
    auto const& p = all.emplace_back(get_device_properties(i));
    auto const m = mem_get_info(i);
    std::printf("gpu:%d  %s, %s free of %s", i, p.name.c_str(), bytes_text(m.free).c_str(),
                bytes_text(m.total).c_str());
    if (!p.simulated)
      std::printf(", compute %d.%d, %d multiprocessors, %s", p.major, p.minor, p.multi_processor_count,
                  p.pci_bus_id.c_str());
    if (p.numa_node >= 0) std::printf(", NUMA node %d", p.numa_node);
    std::printf("\n");
  }
  if (count > 1) std::printf("links, a row reads and writes memory of a column\n%s", draw(all, links()).c_str());
  return count > 0 ? 0 : 1;
}

}  // namespace weir::tool
