// A process-wide table of fixed size: a machine may end when no memory is left.
// Threads: any.
#include "simulator/machine/left_behind.h"

#include <array>

#include "runtime/base/byte_range.h"
#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {

constinit base::mutex left_lock;
constinit base::single_writer<std::size_t> left_count;  // written under the lock
constinit std::array<base::byte_range, left_behind::most> left_ranges{};

}  // namespace

bool left_behind::keep(address at, std::size_t bytes) noexcept {
  base::no_switch const other_machines_are_none_of_a_runs_affairs;
  base::lock_guard const hold(left_lock);
  std::size_t const n = left_count.get();
  if (n == most || !os::unmap_to_nothing(reinterpret_cast<void*>(at), bytes)) return false;
  left_ranges[n] = {at, bytes};
  left_count.set(n + 1);
  return true;
}

bool left_behind::has(address at) noexcept {
  if (left_count.get() == 0) return false;
  base::no_switch const other_machines_are_none_of_a_runs_affairs;
  base::lock_guard const hold(left_lock);
  for (std::size_t i = 0, n = left_count.get(); i < n; ++i) {
    if (left_ranges[i].left_from(at)) return true;
  }
  return false;
}

}  // namespace weir::driver::sim
