// Counters of the pinned pool: torch's four per quantity, changed in one place so that they stay consistent.
// Threads: one at a time; pinned_memory holds the lock.
#pragma once
#include "runtime/observe/stat_math.h"

namespace weir::streams {

class pinned_counters {
 public:
  static constexpr std::size_t large_from = std::size_t{1} << 20;  // bytes, as in torch

  void reserve(std::size_t bytes) { segment(+1, bytes); }
  void unreserve(std::size_t bytes) { segment(-1, bytes); }
  void hand_out(std::size_t requested, std::size_t rounded) {
    change(now_.allocation, +1, requested);
    change(now_.active, +1, requested);
    live(+1, requested, rounded);
    bytes(now_.active_bytes, rounded, requested);
    bytes(now_.cached_bytes, -rounded, requested);
  }
  void take_back(std::size_t requested, std::size_t rounded) {  // to pending
    change(now_.allocation, -1, requested);
    live(-1, requested, rounded);
    bytes(now_.pending_bytes, rounded, requested);
  }
  void reclaim(std::size_t requested, std::size_t rounded) {  // pending to cached
    change(now_.active, -1, requested);
    bytes(now_.active_bytes, -rounded, requested);
    bytes(now_.pending_bytes, -rounded, requested);
    bytes(now_.cached_bytes, rounded, requested);
  }
  std::size_t reserved() const noexcept { return static_cast<std::size_t>(now_.reserved_bytes.all.current); }
  std::size_t allocated() const noexcept { return static_cast<std::size_t>(now_.allocated_bytes.all.current); }
  std::size_t pending() const noexcept { return static_cast<std::size_t>(now_.pending_bytes.all.current); }
  memory_statistics& now() noexcept { return now_; }
  memory_statistics const& now() const noexcept { return now_; }

 private:
  static void change(statistic_by_size& of, std::int64_t by, std::size_t requested) {
    observe::add(of, requested < large_from, by);
  }
  static void bytes(statistic_by_size& of, std::size_t by, std::size_t requested) {
    change(of, static_cast<std::int64_t>(by), requested);
  }
  void live(std::int64_t sign, std::size_t requested, std::size_t rounded) {
    change(now_.allocated_bytes, sign * static_cast<std::int64_t>(rounded), requested);
    change(now_.requested_bytes, sign * static_cast<std::int64_t>(requested), requested);
  }
  void segment(std::int64_t sign, std::size_t size) {
    change(now_.segment, sign, size);
    change(now_.reserved_bytes, sign * static_cast<std::int64_t>(size), size);
    change(now_.cached_bytes, sign * static_cast<std::int64_t>(size), size);
  }

  memory_statistics now_{};
};

}  // namespace weir::streams
