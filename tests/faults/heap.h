// The host heap of a test: operator new counts allocations and fails on request.
// Threads: the count is of the process; failing is ordered for the calling thread alone.
#pragma once
#include <cstdint>

namespace weir::faults::heap {

std::int64_t live() noexcept;  // blocks not yet deleted

// The k-th allocation of this thread from now (1 is the next, 0 none) and `more` after it throw bad_alloc.
void fail(std::uint64_t k, std::uint64_t more) noexcept;
inline constexpr std::uint64_t without_end = ~std::uint64_t{0};
// Returns: the number of refused allocations since fail().
std::uint64_t stop() noexcept;
std::uint64_t asked() noexcept;  // this thread's allocations so far, except in pauses

// Between pause() and go_on() this thread's allocations neither count nor fail. Pauses nest.
void pause() noexcept;
void go_on() noexcept;
struct paused {
  paused() noexcept { pause(); }
  ~paused() { go_on(); }
  paused(paused const&) = delete;
};

}  // namespace weir::faults::heap
