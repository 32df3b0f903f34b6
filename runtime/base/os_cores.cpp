// sysfs: a processor's siblings are those of its core.
// Threads: any.
#include "runtime/base/os_cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "runtime/base/os_file.h"

namespace weir::os {
namespace {

// Returns: the lowest processor of the same core; -1: not known.
int core_of(int processor) {
  std::string const path = "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list";
  auto const text = read_text(path.c_str(), 256).text.value_or("");  // "3,35" or "6-7"
  return text.empty() || text[0] < '0' || text[0] > '9' ? -1 : static_cast<int>(std::strtol(text.c_str(), nullptr, 10));
}

}  // namespace

std::vector<int> processors_of_cores() {
  std::vector<int> found, cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    int const core = core_of(processor);
    if (core < 0) return {};
    if (std::find(cores.begin(), cores.end(), core) != cores.end()) continue;
    cores.push_back(core);
    found.push_back(processor);
  }
  return found;
}

}  // namespace weir::os
