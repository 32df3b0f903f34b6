// Work that marks a block with a number of its own and, later,
// proves that nobody else has written there since.
// Threads: any.
#pragma once
#include "weir/parallel_for.h"

namespace weir::soak {

// In device memory, one for each stream that verifies: what its verifications have found.
struct tally {
  unsigned long long reported;    // verifications that ran
  unsigned long long mismatches;  // words that did not hold what was stamped there
  unsigned long long expected, found, word;  // of the last mismatch, as the machine came by it
};

// The word i of a block stamped with `id`: different ids differ in every word.
WEIR_HOST_DEVICE inline std::uint32_t stamped(std::uint64_t id, std::size_t i) noexcept {
  return static_cast<std::uint32_t>(id) * 2654435761u ^ static_cast<std::uint32_t>(i);
}

// Both wait first for `delay` cycles of the device (a simulated one counts to it):
// what came too early is then seen.
void stamp(stream_ref, void* p, std::size_t bytes, std::uint64_t id, unsigned delay);
void verify(stream_ref, void const* p, std::size_t bytes, std::uint64_t id, unsigned delay, tally*);

}  // namespace weir::soak
