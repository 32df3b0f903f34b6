// weir doctor: libraries, devices, limits and options with their origin, and advice.
// Threads: one.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <boost/version.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/options/options.h"
#include "weir/device.h"
#include "weir/peer.h"

extern char** environ;

namespace weir::tool {
namespace {

struct advice {
  std::vector<std::string> all;
  void give(std::string text) { all.push_back(std::move(text)); }
};

void row(char const* name, std::string const& value) { std::printf("%-18s %s\n", name, value.c_str()); }

// Formats CUDA's encoding of versions: 13000 is "13.0".
std::string cuda_version(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

// A library that weir loads at run time, and its version. Empty name: not found.
struct found_library {
  std::string name;
  int version = 0;
};
found_library find_library(std::initializer_list<char const*> names, char const* version_call) {
  for (char const* name : names) {
    void* const so = os::load_library(name);
    if (!so) continue;
    int version = 0;
    auto* const ask = reinterpret_cast<int (*)(int*)>(os::find_symbol(so, version_call));
    if (!ask || ask(&version) != 0) version = 0;
    return {name, version};
  }
  return {};
}

void libraries(advice& to) {
  auto const driver = find_library({"libcuda.so.1"}, "cuDriverGetVersion");
  row("CUDA driver",
      driver.name.empty() ? "libcuda.so.1 not found" : driver.name + ", CUDA " + cuda_version(driver.version));
#if defined(WEIR_TOOLKIT)
  row("CUDA toolkit", "built with " WEIR_TOOLKIT);
  if (!driver.name.empty() && driver.version < 12000)
    to.give("The CUDA driver is older than 12.0, which weir needs: update it.");
#else
  row("CUDA toolkit", "built without: simulated devices only");
  if (!driver.name.empty())
    to.give(
        "A CUDA driver is here, but this build has no CUDA in it: put nvcc on PATH (or set CUDA_HOME) and build "
        "again.");
#endif
  auto const blas = find_library({"libcublas.so.13", "libcublas.so.12"}, "cublasGetVersion");
  row("cuBLAS", blas.name.empty() ? "libcublas.so.13 or .12 not found" : blas.name);
  auto const nccl = find_library({"libnccl.so.2"}, "ncclGetVersion");
  row("NCCL", nccl.name.empty()
                  ? "libnccl.so.2 not found"
                  : nccl.name + ", " + std::to_string(nccl.version / 10000) + "." +
                        std::to_string(nccl.version / 100 % 100) + "." + std::to_string(nccl.version % 100));
  row("Boost",
      "built with " + std::to_string(BOOST_VERSION / 100000) + "." + std::to_string(BOOST_VERSION / 100 % 1000));
  if (!driver.name.empty() && blas.name.empty())
    to.give("matmul on GPUs needs cuBLAS: install it, or put its folder into LD_LIBRARY_PATH.");
  if (!driver.name.empty() && nccl.name.empty())
    to.give("Communicators over GPUs are quicker with NCCL: install libnccl2, or put its folder into LD_LIBRARY_PATH.");
}

std::string limit_text(rlim_t l) { return l == RLIM_INFINITY ? "unlimited" : bytes_text(l); }

std::string first_line(char const* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void limits(advice& to) {
  rlimit addresses{}, locked{}, files{};
  (void)::getrlimit(RLIMIT_AS, &addresses);
  (void)::getrlimit(RLIMIT_MEMLOCK, &locked);
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  row("processors", std::to_string(os::usable_processors()) + " for this process, " + bytes_text(os::memory_of_host()) +
                        " of memory");
  row("address space", limit_text(addresses.rlim_cur));
  row("locked memory", limit_text(locked.rlim_cur) + " (CUDA's page-locked memory does not count)");
  row("open files", std::to_string(files.rlim_cur));
  if (addresses.rlim_cur != RLIM_INFINITY) {
    to.give(
        "Addresses are limited (ulimit -v): weir reserves them by the TiB. Lift the limit, or set address_space to "
        "what a device's blocks need.");
  }
  if (files.rlim_cur < 1024)
    to.give(
        "Fewer than 1024 files may be open: `ulimit -n 4096`; a program with many GPUs and processes runs out of "
        "them.");
  std::string const maps = first_line("/proc/sys/vm/max_map_count");
  if (!maps.empty()) row("mappings", maps + " a process");
  std::string const huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!huge.empty()) row("huge pages", huge);
  if (huge.find("[never]") != huge.npos)
    to.give(
        "Transparent huge pages are off: page-locking large host memory takes longer. `echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled`.");
  struct statvfs shared{};
  if (::statvfs("/dev/shm", &shared) == 0) row("/dev/shm", bytes_text(shared.f_bavail * shared.f_frsize) + " free");
}

void variables() {
  for (char** v = environ; v && *v; ++v) {
    std::string const entry = *v;
    for (char const* prefix : {"WEIR_", "CUDA_", "NCCL_"}) {
      if (entry.starts_with(prefix)) row("variable", entry);
    }
  }
}

void options_in_force(advice& to) {
  auto const found = find_options();
  size_t i = 0;
  for (option_row const& o : option_table()) {
    row(i == 0 ? "options" : "", [&] {
      char text[160];
      std::snprintf(text, sizeof text, "%-16s %-28s from %s", std::string(o.name).c_str(),
                    option_text(o, found.in_force).c_str(), found.origin[i].c_str());
      return std::string(text);
    }());
    ++i;
  }
  if (found.in_force.launch_blocking)
    to.give("launch_blocking is on: every launch waits for its work. For finding an error, not for speed.");
  if (found.in_force.check_races)
    to.give("check_races is on: every call is looked at. For finding a race, not for speed.");
}

void devices(advice& to) {
  runtime& here = runtime::current();
  row("machine", here.description());
  if (here.is_simulated())
    to.give(
        "Devices are simulated: results are right, times mean nothing. WEIR_DEVICES=cuda refuses to start without a "
        "GPU and says why.");
  int const count = device_count();
  for (int i = 0; i < count; ++i) {
    auto const p = get_device_properties(i);
    auto const m = mem_get_info(i);
    row(device(i).str().c_str(), p.name + ", " + bytes_text(m.free) + " free of " + bytes_text(m.total) +
                                     (p.numa_node >= 0 ? ", NUMA node " + std::to_string(p.numa_node) : ""));
    if (!p.simulated && m.free < m.total / 2) {
      to.give(
          "Half of " + device(i).str() +
          " and more is held by others: `nvidia-smi` names the processes; CUDA_VISIBLE_DEVICES chooses among devices.");
    }
    if (!p.simulated && p.major < 7)
      to.give(device(i).str() + " is of compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
              ": weir's own kernels are built for 7.5 and newer.");
  }
  if (count < 2) return;
  for (peer_link const& l : links()) {
    if (l.from.index() >= l.to.index()) continue;
    if (l.wrong)
      to.give("The link " + l.from.str() + " - " + l.to.str() +
              " gave wrong bytes when it was tried: copies go through host memory. Look for Xid errors in `dmesg`.");
    if (l.by == peer_link::kind::host && !here.is_simulated()) {
      to.give(l.from.str() + " and " + l.to.str() +
              " do not reach each other: copies go through host memory (IOMMU or ACS settings, or no link).");
    }
  }
}

}  // namespace

int doctor(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  po::options_description all(
      "weir doctor: what is here, what is in force and where it came from, what to do about it");
  std::string on;
  bool document = false;
  all.add_options()("help,h", "this text")("options", po::bool_switch(&document),
                                           "the options as a document: docs/reference/options.md")(
      "devices", po::value(&on), "auto | cuda | sim[:N[:GiB]]; WEIR_DEVICES, else auto");
  if (!understood(arguments, all)) return 0;
  if (document) {
    std::cout << options_document();
    return 0;
  }
  use_devices(on);
  advice found;
  libraries(found);
  devices(found);
  limits(found);
  variables();
  options_in_force(found);
  std::printf("\n");
  if (found.all.empty()) std::printf("Nothing to advise.\n");
  for (auto const& text : found.all) std::printf("* %s\n", text.c_str());
  return 0;
}

}  // namespace weir::tool
