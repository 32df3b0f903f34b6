// mbind(2) without the library that wraps it, prefaulted pages, and this process's processors.
// Threads: any.
#include "runtime/base/os_numa.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "runtime/base/os.h"

namespace weir::os {
namespace {

class of_system final : public nodes {
 public:
  bool prefer(void* at, std::size_t bytes, int numa_node) noexcept override {
    constexpr int preferred = 1;  // MPOL_PREFERRED
    constexpr int bits = 64;
    if (numa_node >= bits)
      return false;
    unsigned long const mask = 1UL << numa_node;
    return ::syscall(SYS_mbind, at, bytes, preferred, &mask, static_cast<unsigned long>(bits) + 1, 0U) == 0;
  }
  std::vector<int> near(int numa_node) override { return processors_near(numa_node); }
  std::vector<int> allowed() override {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> found;
    if (::sched_getaffinity(0, sizeof set, &set) != 0)
      return found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set))
        found.push_back(cpu);
    return found;
  }
  bool keep_on(std::vector<int> const& processors) noexcept override { return run_this_thread_on(processors); }
};

// sysfs: a processor's siblings are those of its core.
// Returns: the lowest processor of the same core; -1: not known.
int core_of(int processor) {
  std::string const path = "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list";
  auto const text = read_text(path.c_str(), 256).text.value_or("");  // "3,35" or "6-7"
  return text.empty() || text[0] < '0' || text[0] > '9' ? -1 : static_cast<int>(std::strtol(text.c_str(), nullptr, 10));
}

nodes* installed = nullptr;
nodes& asked() noexcept {
  static of_system system;
  return installed ? *installed : system;
}

}  // namespace

void nodes_by(nodes* them) noexcept {
  installed = them;
}

bool prefer_node(void* at, std::size_t bytes, int numa_node) noexcept {
  return numa_node >= 0 && asked().prefer(at, bytes, numa_node);
}

std::vector<int> usable_processors_near(int numa_node) {
  std::vector<int> both;
  if (numa_node < 0)
    return both;
  std::vector<int> near = asked().near(numa_node), allowed = asked().allowed();
  std::sort(near.begin(), near.end());
  std::sort(allowed.begin(), allowed.end());
  std::set_intersection(near.begin(), near.end(), allowed.begin(), allowed.end(), std::back_inserter(both));
  // The node restricts nothing.
  if (both.size() == allowed.size())
    both.clear();
  return both;
}

std::vector<int> processors_of_cores() {
  std::vector<int> found, cores;
  for (int const processor : of_system().allowed()) {
    int const core = core_of(processor);
    if (core < 0)
      return {};
    if (std::find(cores.begin(), cores.end(), core) != cores.end())
      continue;
    cores.push_back(core);
    found.push_back(processor);
  }
  return found;
}

bool keep_this_thread_on(std::vector<int> const& processors) noexcept {
  return asked().keep_on(processors);
}

bool forks_copy_pinned_pages() noexcept {
  static bool const yes = [] {
    utsname its{};
    int major = 0, minor = 0;
    bool const known = ::uname(&its) == 0 && std::sscanf(its.release, "%d.%d", &major, &minor) == 2;
    return known && (major > 5 || (major == 5 && minor >= 12));
  }();
  return yes;
}

bool make_present(void* at, std::size_t bytes) noexcept {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE of Linux 5.14
  return ::madvise(at, bytes, populate_write) == 0;
}

}  // namespace weir::os
