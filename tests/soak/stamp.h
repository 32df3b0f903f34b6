// Work that stamps a block with its own number, and later verifies that nothing else has written there.
// Threads: any.
#pragma once
#include "weir/parallel_for.h"

namespace weir::soak {

// In device memory, one for each verifying stream: the results of its verifications.
struct tally {
  unsigned long long reported;               // verifications that ran
  unsigned long long mismatches;             // words that did not hold what was stamped there
  unsigned long long expected, found, word;  // of the last mismatch that the machine saw
};

// Word i of a block stamped with `id`. Different ids differ in every word.
WEIR_HOST_DEVICE inline std::uint32_t stamped(std::uint64_t id, std::size_t i) noexcept {
  return static_cast<std::uint32_t>(id) * 2654435761u ^ static_cast<std::uint32_t>(i);
}

// Both wait `delay` device cycles first (a simulated device counts to it), to expose early uses.
void stamp(stream_ref, void* p, std::size_t bytes, std::uint64_t id, unsigned delay);
void verify(stream_ref, void const* p, std::size_t bytes, std::uint64_t id, unsigned delay, tally*);

}  // namespace weir::soak
