// weir replay --fit: the smallest limit into which a program fits, and the GPUs that have so much.
// Threads: one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "replayed.h"

namespace weir::tool {

// Searches in steps of `step` bytes. A program that fits at one limit may fail at a larger one, where handles have
// other sizes: the next limits above are tried, too.
// below: a limit that is known to be too small. guess: is tried first, and is above. most: none larger is tried.
// Returns: a limit that fits, where the limit one step below does not; null: `most` does not fit.
template <class Fits>
std::optional<std::size_t> smallest_limit(std::size_t below, std::size_t guess, std::size_t most, std::size_t step,
                                          Fits fits) {
  for (std::size_t limit = std::min(guess, most);;) {
    for (std::size_t stride = step; !fits(limit); stride *= 2) {
      if (limit >= most)
        return {};
      below = limit;
      limit = std::min(most, limit + stride);
    }
    while (limit - below > step) {
      std::size_t const next = below + std::max<std::size_t>(1, (limit - below) / 2 / step) * step;
      fits(next) ? limit = next : below = next;
    }
    std::size_t const found = limit;
    for (int steps : {1, 2, 4}) {
      std::size_t const above = found + static_cast<std::size_t>(steps) * step;
      if (above < most && !fits(above))
        below = above;
    }
    if (below < found)
      return found;
    limit = std::min(most, below + step);
  }
}

struct gpu_size {
  int gb;              // as such GPUs are sold
  std::size_t usable;  // bytes that the driver reports on the least of these, below
  char const* examples;
};
// By size. ECC takes a sixteenth of GDDR memory.
std::span<gpu_size const> gpu_sizes() noexcept;
inline constexpr std::size_t beside_weir = std::size_t{1} << 30;  // bytes: the context, cuBLAS and NCCL of one process
gpu_size const* smallest_gpu(std::size_t limit) noexcept;  // whose memory has the limit and beside_weir; null: none

// Prints a line for each trace. Returns: the exit status. Throws: the library's errors
int fit(std::vector<std::string> const& traces, replay_settings const&);

}  // namespace weir::tool
