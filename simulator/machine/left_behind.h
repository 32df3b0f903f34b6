// Addresses of memory that its owner had not freed when the machine ended. They stay reserved and empty, so
// that a late owner never hits memory of the host or of a later machine.
// Threads: any.
#pragma once
#include <algorithm>
#include <array>

#include "runtime/base/byte_range.h"
#include "runtime/base/os.h"
#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class left_behind {
 public:
  // false: the table is full, and nothing has changed
  static bool keep(address at, std::size_t bytes) noexcept {
    base::no_switch const other_machines_are_none_of_a_runs_affairs;
    base::lock_guard const hold(lock_);
    std::size_t const n = count_.get();
    if (n == most || !os::unmap_to_nothing(reinterpret_cast<void*>(at), bytes))
      return false;
    ranges_[n] = {at, bytes};
    count_.set(n + 1);
    return true;
  }
  static bool has(address at) noexcept {
    if (count_.get() == 0)
      return false;
    base::no_switch const other_machines_are_none_of_a_runs_affairs;
    base::lock_guard const hold(lock_);
    return std::any_of(ranges_.begin(), ranges_.begin() + count_.get(), [&](auto const& r) { return r.left_from(at); });
  }
  // Returns the addresses of a reservation to the system, except those of mappings.
  template <class Mappings>
  static void give_back_all_but(Mappings const& mapped, address at, std::size_t bytes) noexcept {
    address from = at;
    auto const go = [&](address to) {
      if (to > from)
        os::return_addresses(reinterpret_cast<void*>(from), to - from);
    };
    for (auto m = mapped.lower_bound(at); m != mapped.end() && m->first < at + bytes; ++m) {
      if (!keep(m->first, m->second.bytes))
        continue;
      go(m->first);
      from = m->first + m->second.bytes;
    }
    go(at + bytes);
  }

 private:
  static constexpr std::size_t most = 1024;  // per process: each takes a mapping of the system
  // Of fixed size: a machine may end when no memory is left.
  static inline constinit std::array<base::byte_range, most> ranges_{};
  static inline constinit base::single_writer<std::size_t> count_;  // written under the lock
  static inline constinit base::mutex lock_;
};

}  // namespace weir::driver::sim
