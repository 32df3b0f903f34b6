// How much of a device may be reserved, from the counters of all heaps.
// Threads: as reserve_bound.h.
#include "runtime/memory/supply/reserve_bound.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weir::memory {
namespace {
constexpr std::size_t fetched_ahead = 8;  // heaps
// Parts of the way from epsilon to options::widest_epsilon. The first are small: many programs need no more.
constexpr double widths[] = {0, 0.01, 0.02, 0.04, 0.1, 0.2, 0.5, 1};
// The part of a device that a width leaves free: another library fails before weir hears of its need.
constexpr std::size_t margin = 8;
// A move takes as long as some thousand allocations. One among so many costs a program that works a percent or less.
constexpr std::int64_t price = 32;
// Moves without an allocation between them that make a step. A first iteration has bursts that do not come again; a
// program that has bought a step is known to move.
constexpr std::int64_t first_patience = 512, later_patience = 64;
}  // namespace

// All heaps' counters, in one walk without a lock. In them what thread caches hold counts as live. Among few
// streams it is subtracted, for which each heap's lock is taken.
reserve_bound::usage reserve_bound::now() const {
  reserve_bound::usage n;
  std::size_t const all = heaps_.index.size();
  bool const few = all <= heap_index::few;
  for (std::size_t i = 0; i < all; ++i) {
    if (i + fetched_ahead < all)
      heaps_.index[i + fetched_ahead].prefetch_counts();
    stream_heap const& t = heaps_.index[i];
    if (t.rules().pages_stay) {  // none of its pages can go
      n.live += t.bytes_mapped();
      continue;
    }
    n.live += t.bytes_live();
    n.allocations += t.large_allocations();
    n.pending += t.bytes_pending();
    // A heap's peak counts what its caches hold. Among many heaps that is not subtracted below: no peak is taken.
    if (few)
      n.most_of_one = std::max(n.most_of_one, t.most_live());
  }
  if (!few)
    return n;
  observe::cached_slots caches;
  heaps_.index.each([&](stream_heap& m) {
    if (!m.rules().pages_stay)
      caches += quiet_session(m).cached_slots();
  });
  n.live = std::max<std::int64_t>(0, n.live - caches.held_bytes);
  n.most_of_one = std::max<std::int64_t>(0, n.most_of_one - caches.held_bytes);
  n.pending += caches.waiting_bytes;
  return n;
}

// The first term of the bound. A device of one stream knows its peak;
// of several, what was live whenever one needed more.
std::size_t reserve_bound::most(reserve_bound::usage const& n, std::size_t asked) noexcept {
  most_live_.raise(static_cast<std::size_t>(std::max(n.most_of_one, n.live)));
  std::size_t const live = std::max(most_live_.load(), static_cast<std::size_t>(n.live + n.pending) + asked);
  return live + static_cast<std::size_t>(static_cast<double>(live) * of_.epsilon);
}

bool reserve_bound::may_widen(memory_pool const& pool) const {
  return of_.widest_epsilon > of_.epsilon && !of_.counts.limit() && !pool.now().limit && !of_.is_nearly_full();
}

std::size_t reserve_bound::width() const {
  base::lock_guard const hold(lock_);
  double const share = (of_.widest_epsilon - of_.epsilon) * widths[step_];
  return static_cast<std::size_t>(static_cast<double>(most_live_.load()) * share);
}

bool reserve_bound::leaves_margin(std::size_t bytes) {
  auto const now = of_.machine.memory(of_.device);
  // What other threads have charged may not be made yet.
  std::size_t const kept = of_.space.info().total_memory / margin + of_.counts.under_way();
  return now.ok() && now.value.free >= kept + bytes;
}

void reserve_bound::learn(usage const& n, memory_pool const& pool, std::size_t moves) {
  if (!may_widen(pool))
    return;
  base::lock_guard const hold(lock_);
  // The sum falls when a heap ends.
  std::int64_t const paid = std::max<std::int64_t>(0, n.allocations - allocations_);
  allocations_ = n.allocations;
  debt_ = std::max<std::int64_t>(0, debt_ + static_cast<std::int64_t>(moves) * price - paid);
  std::int64_t const patience = step_ ? later_patience : first_patience;
  if (debt_ < patience * price)
    return;
  // It is as wide as it may be.
  if (step_ + 1 == std::size(widths))
    return;
  ++step_;
  debt_ = 0;
}

bool reserve_bound::narrow() noexcept {
  base::lock_guard const hold(lock_);
  debt_ = 0;
  return std::exchange(step_, 0) != 0;
}

}  // namespace weir::memory
