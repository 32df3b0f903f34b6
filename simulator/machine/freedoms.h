// The freedoms CUDA leaves a device (docs/simulated-machine.md, F1 to F10):
// which of them a machine takes, and how often it did.
// Threads: drawing under the machine's lock; counting any.
#pragma once
#include <array>
#include <string_view>

#include "runtime/base/sync.h"
#include "simulator/machine/tape.h"
#include "weir/runtime.h"

namespace weir::driver::sim {

enum class freedom : std::uint8_t {
  overlap = 1,         // F1: work starts late, or while other work that it is not ordered with is half done
  // F2: streams share connections to the hardware; what one stream cannot start yet holds up the others
  shared_connections,
  blocking_calls,      // F3: a call other than the enqueueing ones waits for all work that can move
  seen_late,           // F4: the bytes are there, and a query does not say so yet
  late_errors,         // F5: work has failed, and calls go on as if it were pending
  reuse,               // F6: handles and addresses come back at once
  host_functions,      // F7: host functions wait though nothing is before them, and for one another
  room,                // F8: an allocation fails although there is room; another process takes room, and gives it back
  wrong_bytes,         // F9: a link that was granted changes bytes
  time,                // F10: the clock jumps
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
  // Shall it be taken now? By the tape; counted if so. Draws nothing when the freedom is off.
  bool takes(freedom f, std::uint32_t percent) noexcept {
    if (!on(f) || !tape_.coin(percent)) return false;
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
