// The host's heap of a test: operator new counts, and fails when it is told to.
// Threads: the count is of the process; failing is ordered for the calling thread alone.
#pragma once
#include <cstdint>

namespace weir::faults::heap {

std::int64_t live() noexcept;  // blocks that were not deleted yet

// The k-th allocation of this thread from now, and `more` after it, throw bad_alloc.
// k = 1 is the next; 0: none.
void fail(std::uint64_t k, std::uint64_t more) noexcept;
inline constexpr std::uint64_t without_end = ~std::uint64_t{0};
// Returns: how many allocations were refused since fail().
std::uint64_t stop() noexcept;
std::uint64_t asked() noexcept;  // allocations of this thread so far, those of pauses left out

// Between the two this thread's allocations neither count nor fail. They nest.
void pause() noexcept;
void go_on() noexcept;
struct paused {
  paused() noexcept { pause(); }
  ~paused() { go_on(); }
  paused(paused const&) = delete;
};

}  // namespace weir::faults::heap
