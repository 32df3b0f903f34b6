// What a process holds at rest, how long its calls take, and whether either grew in a run.
// Threads: one for samples; a `call_times` belongs to one.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/soak/books.h"
#include "tests/soak/host_blocks.h"

namespace weir::soak {

// Samples are taken at rest: every short-lived thing has ended, and every cache is empty.
enum class measure : std::uint8_t {
  descriptors,  // open files
  threads,
  device_bytes,    // of memory handles and segments
  pins,            // page-locked ranges
  reserved,        // bytes of addresses reserved from the driver
  used_addresses,  // bytes of these that were ever mapped
  streams,
  events,
  graphs,         // of the driver
  host_bytes,     // live bytes of the heap, without large blocks and those of operator new
  large_blocks,   // of the heap: the tables of reservations and of their parts
  resident,       // bytes of the process in memory
  virtual_bytes,  // VmSize, without the driver's reservations
  host_blocks,    // live blocks of the heap of one size; the sizes follow in turn
};
inline constexpr std::size_t named_measures = static_cast<std::size_t>(measure::host_blocks);
inline constexpr std::size_t measures = named_measures + block_sizes;
std::string name_of(measure);

struct sample {
  std::array<std::int64_t, measures> of{};
  std::int64_t at(measure m) const noexcept { return of[static_cast<std::size_t>(m)]; }
  std::uint64_t ends = 0;    // acts so far
  std::uint64_t rarest = 0;  // of the kind of act with the fewest so far
};
sample sample_now(books const&);

// A measure over the quarters of a run's acts: their medians, the most and the least that tell. The largest step from
// one rest to the next is taken out, after the first quarter, of what is not the same at each rest.
//
// What must be the same at each rest has grown if the whole last quarter is above the first. Other measures keep the
// most that was ever needed at once, and random acts need a little more ever more rarely. A leak of one unit by any
// kind of act adds `rarest` units or more, `bound` is half of that; and it adds as much for each act at the end as in
// the beginning. The most of n draws grows with log n: from the third quarter to the last by 0.3 of what it grows
// from the first to the second. A short run has few draws, so `steady` is nearer to 1 than to 0.3, and growth by less
// than a `part` of the first quarter tells nothing. 20 clean runs of two minutes came to 0.7 of a bound at most.
struct growth {
  static constexpr double steady = 0.75;
  static constexpr std::uint64_t least_acts = 8;  // of the rarest kind: fewer say nothing about a rate
  measure of;
  bool same = false;  // at each rest
  std::int64_t part = 8;
  std::array<std::int64_t, 4> median{}, least{}, most{};
  std::int64_t bound = 0;
  std::uint64_t rarest = 0;    // acts of the rarest kind
  double early = 0, late = 0;  // units an act, from the first quarter to the second, from the third to the last
  bool judged() const noexcept { return same || rarest >= least_acts; }
  bool too_much() const noexcept {
    if (same)
      return least[3] > most[0];
    return judged() && median[3] - median[0] > std::max(bound, median[0] / part) && late > steady * early &&
           least[3] > most[1];
  }
};
std::vector<growth> growth_of(std::vector<sample> const&);

// What the processor spent on the calling thread: neither other programs nor waits count.
std::chrono::nanoseconds time_of_thread() noexcept;

// A histogram of times: sixteen steps for each power of two, so a quantile is exact to 4 %.
class call_times {
 public:
  void add(std::chrono::nanoseconds) noexcept;
  void add(call_times const&) noexcept;
  std::uint64_t count() const noexcept { return count_; }
  double quantile_ns(double) const noexcept;

 private:
  static constexpr std::size_t steps = 16, powers = 40;
  std::array<std::uint32_t, steps * powers> times_{};
  std::uint64_t count_ = 0;
};

// A time that is constant stays at a ratio of 1. One that grows with the number of ended things is, in the middle
// of the last quarter, seven times that in the middle of the first. The bound is the geometric mean of both. Times
// are the calling thread's own on its processor. In 20 clean runs on a busy machine the largest ratio was 1.8.
struct slowdown {
  static constexpr double bound = 2.65;
  static constexpr std::uint64_t least = 16;  // calls a quarter: fewer have no meaningful quartiles
  std::string_view call;
  call_times first, last;
  bool judged() const noexcept { return first.count() >= least && last.count() >= least; }
  bool too_much() const noexcept {
    return judged() && last.quantile_ns(0.5) > bound * first.quantile_ns(0.5) &&
           last.quantile_ns(0.25) > first.quantile_ns(0.75);  // the quartiles do not overlap
  }
};

}  // namespace weir::soak
