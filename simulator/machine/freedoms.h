// The freedoms that a machine takes: F1 to F10 of docs/reference/simulated-machine.md.
// Threads: draws under the machine's lock; counting from any.
#pragma once
#include <array>
#include <string_view>

#include "runtime/base/sync.h"
#include "simulator/machine/tape.h"
#include "weir/runtime.h"

namespace weir::driver::sim {

enum class freedom : std::uint8_t {
  overlap = 1,  // F1: work starts late, and overlaps work it is not ordered with
  // F2: streams share hardware connections; a stream that cannot start yet blocks the others
  shared_connections,
  blocking_calls,  // F3: calls that do not enqueue may wait for all work that can move
  seen_late,       // F4: a query does not report completed work yet
  late_errors,     // F5: work has failed, and later calls still succeed
  reuse,           // F6: handles and addresses are reused at once
  host_functions,  // F7: host functions start late, and one at a time
  room,            // F8: an allocation fails although there is room; other processes allocate and free memory
  wrong_bytes,     // F9: a granted link corrupts bytes
  time,            // F10: the clock jumps
};
inline constexpr std::size_t freedom_count = 10;
std::string_view name_of(freedom) noexcept;

class freedoms {
 public:
  freedoms(weir::simulated const&, tape&) noexcept;
  bool on(freedom f) const noexcept { return on_ >> static_cast<int>(f) & 1; }
  void took(freedom f) noexcept { taken_[static_cast<std::size_t>(f) - 1].fetch_add(1, base::memory_order_relaxed); }
  std::uint64_t taken(freedom f) const noexcept {
    return taken_[static_cast<std::size_t>(f) - 1].load(base::memory_order_relaxed);
  }
  // Draws whether the freedom is taken now, and counts it. Draws nothing if the freedom is off.
  bool takes(freedom f, std::uint32_t percent) noexcept {
    if (!on(f) || !tape_.coin(percent))
      return false;
    took(f);
    return true;
  }
  std::uint32_t draw(std::uint32_t n) noexcept { return tape_.draw(n); }

 private:
  tape& tape_;
  std::uint32_t on_ = 0;  // bit i: Fi
  std::array<base::atomic<std::uint64_t>, freedom_count> taken_;
};

}  // namespace weir::driver::sim
