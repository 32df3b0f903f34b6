// The levels of one device as the sum over its heaps, with their peaks.
// Threads: any.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/sync.h"

namespace weir::observe {

// The levels with a peak that change on every allocation, for small, large and all.
enum class level : std::uint8_t { allocation, active, allocated_bytes, active_bytes, requested_bytes };
inline constexpr std::size_t levels = 5;
using by_pool = std::array<std::int64_t, 3>;  // small, large, all
using level_values = std::array<by_pool, levels>;

// Sums the heap_counters of one device if there are several.
class shared_levels {
 public:
  void join() noexcept {
    base::lock_guard const hold(lock_);
    ++heaps_;
  }
  // What a heap_counters last reported: its levels stay below `upto` until it reports again.
  struct published_levels {
    level_values upto{};
    std::int64_t slack = 0, slack_blocks = 0;  // how far a level of bytes, or of blocks, may rise after a report
    std::int64_t extra = 0;                    // bytes of slack beyond the equal share of an eighth of the peak
  };
  // A heap_counters reports that it is at `now`. Sets its slack. own_slack and slack_bytes are already 7/16
  // of the error that they allow.
  void publish(level_values const& now, published_levels& last, std::int64_t own_slack, std::int64_t slack_bytes,
               std::int64_t slack_blocks) noexcept {
    base::lock_guard const hold(lock_);
    std::int64_t const n = std::max(heaps_, few);
    constexpr auto active = static_cast<std::size_t>(level::active_bytes);
    constexpr std::size_t all = 2;
    // An eighth of the peak: a quarter of it in equal shares, the rest by what each heap_counters holds.
    std::int64_t const eighth = peaks_[active][all] / 8, by_holding = eighth - eighth / 4;
    // In KiB, so that the product does not overflow.
    std::int64_t const held = sums_[active][all] >> 10, own = last.upto[active][all] >> 10;
    std::int64_t const wanted = held > 0 ? by_holding / held * own : 0;
    // At most what the others leave of by_holding.
    extra_ -= last.extra;
    last.extra = std::clamp<std::int64_t>(wanted, 0, std::max<std::int64_t>(0, by_holding - extra_));
    extra_ += last.extra;
    std::int64_t const share = eighth / 4 / std::max<std::int64_t>(1, heaps_) + last.extra;
    last.slack = std::max({own_slack, slack_bytes * few / n, share * 7 / 16});
    last.slack_blocks = slack_blocks * few / n;
    auto const publish_level = [&](std::size_t k, std::int64_t slack) {
#pragma GCC unroll 3
      for (std::size_t p = 0; p < 3; ++p) {
        std::int64_t const upto = now[k][p] + slack, sum = sums_[k][p] + (upto - last.upto[k][p]), peak = peaks_[k][p];
        sums_[k][p] = sum;
        last.upto[k][p] = upto;
        peaks_[k][p] = sum > peak ? sum : peak;
      }
    };
    constexpr auto first_of_bytes = static_cast<std::size_t>(level::allocated_bytes);
    for (std::size_t k = 0; k < first_of_bytes; ++k)
      publish_level(k, last.slack_blocks);
    for (std::size_t k = first_of_bytes; k < levels; ++k)
      publish_level(k, last.slack);
  }
  void raise(level_values const& to) noexcept {
    base::lock_guard const hold(lock_);
    for (std::size_t k = 0; k < levels; ++k) {
      for (std::size_t p = 0; p < 3; ++p)
        peaks_[k][p] = std::max(peaks_[k][p], to[k][p]);
    }
  }
  void lower() noexcept {
    base::lock_guard const hold(lock_);
    peaks_ = sums_;
  }
  std::int64_t peak(level k, std::size_t p) const noexcept {
    base::lock_guard const hold(lock_);
    return peaks_[static_cast<std::size_t>(k)][p];
  }

 private:
  mutable base::mutex lock_;  // the last lock in the order
  level_values sums_{}, peaks_{};
  static constexpr std::int64_t few = 4;  // so many heap_counters have the whole slack each; more share it
  std::int64_t heaps_ = 0;
  std::int64_t extra_ = 0;  // bytes: the sum over all heap_counters
};

}  // namespace weir::observe
