// Addresses of memory that its owner had not freed when the machine ended. They stay reserved and empty, so
// that a late owner never hits memory of the host or of a later machine.
// Threads: any.
#pragma once
#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

struct left_behind {
  static constexpr std::size_t most = 1024;  // per process: each takes a mapping of the system
  // false: the table is full, and nothing has changed
  static bool keep(address, std::size_t bytes) noexcept;
  static bool has(address) noexcept;
  // Returns the addresses of a reservation to the system, except those of mappings.
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
