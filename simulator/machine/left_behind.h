// What machines leave behind: the addresses of memory that was mapped still when they ended, because its
// owners had not given it back. Nothing lies there, and neither a later machine nor the host is given them:
// an owner that comes late finds nobody else's memory.
// Threads: any.
#pragma once
#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

struct left_behind {
  static constexpr std::size_t most = 1024;  // of a process: each takes a mapping of the system's
  // false: there is no room for more of them, and nothing has changed
  static bool keep(address, std::size_t bytes) noexcept;
  static bool has(address) noexcept;
  // The addresses of a reservation go, but for those of what is mapped there.
  template <class Mappings>
  static void give_back_all_but(Mappings const& mapped, address at, std::size_t bytes) noexcept {
    address from = at;
    auto const go = [&](address to) {
      if (to > from) os::return_addresses(reinterpret_cast<void*>(from), to - from);
    };
    for (auto m = mapped.lower_bound(at); m != mapped.end() && m->first < at + bytes; ++m) {
      if (!keep(m->first, m->second.bytes)) continue;
      go(m->first);
      from = m->first + m->second.bytes;
    }
    go(at + bytes);
  }
};

}  // namespace weir::driver::sim
