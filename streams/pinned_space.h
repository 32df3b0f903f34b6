// The pinned pool's map of addresses: segments cut into ranges, in order of address, best fit, neighbours merged.
// Threads: one at a time; pinned_memory holds the lock.
//
// Invariant: the ranges of a segment cover it without a gap, no two neighbours are both free, and the free ranges are
// exactly those listed by size.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/clock/timeline.h"
#include "runtime/driver/driver.h"

namespace weir::streams {

class pinned_space {
 public:
  using address = driver::address;
  static constexpr std::size_t granule = 64;  // bytes: what sizes are rounded to; a cache line, so that no two blocks share one

  enum class state : std::uint8_t {
    free,
    live,
    pending,      // freed; a stream it was marked for has not passed its stamp
    quarantined,  // freed; a device that is lost may still write it: never handed out again
  };
  struct range {
    std::size_t bytes = 0;
    address segment = 0;                     // its base
    state is = state::free;
    bool use_forgotten = false;              // no room to note a mark: nobody can know when it is unused
    std::size_t requested = 0;               // bytes
    std::vector<clock::timeline*> users;     // while live: marked for these
    std::vector<clock::stamp> stamps;        // exact uses; once freed, all of them
  };
  using ranges = std::map<address, range>;
  using place = ranges::iterator;

  void add(address base, std::size_t bytes);
  void remove(address base);                                  // Requires: wholly free
  std::vector<address> wholly_free() const;                   // segments, by base
  std::size_t bytes_of(address segment) const { return segments_.at(segment); }

  // The smallest free range that holds `bytes` at that alignment, cut to size; end() when there is none. It is live then.
  // Requires: bytes a multiple of the granule, not 0; alignment a power of two.
  place take(std::size_t bytes, std::size_t alignment);
  place give(place);                                          // becomes free and merges with its neighbours
  place find(address);                                        // the range that holds the address; end(): in no segment
  place end() { return ranges_.end(); }
  ranges& all() noexcept { return ranges_; }
  std::map<address, std::size_t> const& segments() const noexcept { return segments_; }
  std::size_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  std::size_t free_ranges() const noexcept { return by_size_.size(); }
  std::vector<std::string> validate() const;                  // what of the invariant does not hold

 private:
  place cut(place, std::size_t first_bytes);                  // free range in two; returns the second

  ranges ranges_;
  std::set<std::pair<std::size_t, address>> by_size_;
  std::map<address, std::size_t> segments_;
};

}  // namespace weir::streams
