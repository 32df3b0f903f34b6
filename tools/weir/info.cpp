// weir info: what machine a program would get here, and why.
// Threads: one.
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "commands.h"
#include "runtime/options.h"
#include "weir/device.h"
#include "weir/peer.h"

namespace weir::tool {
namespace {

std::string name_of(link const& l) {
  switch (l.by) {
    case link::kind::self: return "-";
    case link::kind::nvlink: return l.nvlinks ? "nvlink x" + std::to_string(l.nvlinks) : "nvlink";
    case link::kind::direct: return "direct";
    case link::kind::host: return "host";
  }
  return "?";
}

}  // namespace

int info(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  po::options_description all("weir info: the machine a program would get here");
  all.add_options()("help,h", "this text")("devices", po::value(&devices), "auto | cuda | sim[:N[:GiB]]; WEIR_DEVICES, else auto");
  po::variables_map values;
  po::store(po::command_line_parser(arguments).options(all).positional({}).run(), values);
  po::notify(values);
  if (values.count("help")) {
    std::cout << all;
    return 0;
  }
  if (!devices.empty()) setenv("WEIR_DEVICES", devices.c_str(), 1);
  std::printf("%s\n", runtime::current().description().c_str());
  int const count = device_count();
  for (int i = 0; i < count; ++i) {
    auto const p = get_device_properties(i);
    auto const m = mem_get_info(i);
    std::printf("gpu:%d  %s, %s free of %s", i, p.name.c_str(), bytes_text(m.free).c_str(), bytes_text(m.total).c_str());
    if (!p.simulated) std::printf(", compute %d.%d, %d multiprocessors, %s", p.major, p.minor, p.multi_processor_count, p.pci_bus_id.c_str());
    if (p.numa_node >= 0) std::printf(", NUMA node %d", p.numa_node);
    std::printf("\n");
  }
  if (count > 1) {
    std::printf("links, a row reads and writes memory of a column:\n        ");
    for (int i = 0; i < count; ++i) std::printf("%-10s", device(i).str().c_str());
    for (link const& l : links()) {
      if (l.to.index() == 0) std::printf("\n  %-6s", l.from.str().c_str());
      std::printf("%-10s", name_of(l).c_str());
    }
    std::printf("\n");
  }
  return count > 0 ? 0 : 1;
}

}  // namespace weir::tool
