// sysfs: a processor's siblings are those of its core.
// Threads: any.
#include "runtime/base/os_cores.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace weir::os {
namespace {

// The lowest processor of the same core; -1: not known.
int core_of(int processor) {
  std::string const path = "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list";
  int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  char text[256];
  ssize_t const length = ::read(file, text, sizeof text - 1);  // "3,35" or "6-7"
  ::close(file);
  if (length <= 0 || text[0] < '0' || text[0] > '9') return -1;
  text[length] = 0;
  return static_cast<int>(std::strtol(text, nullptr, 10));
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
