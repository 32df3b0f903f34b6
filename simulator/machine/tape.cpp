// The tape that a thread lends.
// Threads: each has its own.
#include "simulator/machine/tape.h"

#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {
base::per_thread<tape*>& lent() noexcept {
  static auto* const here = new base::per_thread<tape*>;  // never destroyed: machines of static objects end late
  return *here;
}
}  // namespace

lent_tape::lent_tape(tape& t) noexcept : found_(std::exchange(lent().get(), &t)) {}
lent_tape::~lent_tape() { lent().get() = found_; }
tape* lent_tape::here() noexcept { return lent().get(); }

}  // namespace weir::driver::sim
