// The pinned pool's map of addresses: segments cut into ranges, in order of address, best fit, neighbours merged.
// Threads: one at a time; pinned_memory holds the lock.
//
// Invariant: the ranges of a segment cover it without a gap, no two neighbours are both free, and the free ranges are
// exactly those listed by size.
#pragma once
#include <algorithm>
#include <boost/container/small_vector.hpp>
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
  using sizes = std::set<std::pair<std::size_t, address>>;
  template <class T>
  using few = boost::container::small_vector<T, 4>;  // as many as nearly all blocks need, so that noting one cannot fail
  struct range {
    std::size_t bytes = 0;
    address segment = 0;                     // its base
    state is = state::free;
    bool use_forgotten = false;              // no room to note a mark: nobody can know when it is unused
    std::size_t requested = 0;               // bytes
    few<clock::timeline*> users{};           // while live: marked for these
    few<clock::stamp> stamps{};              // exact uses; once freed, all of them
    sizes::node_type listing{};              // unless free: its entry in the list by size, so that giving it back never allocates
  };
  using ranges = std::map<address, range>;
  using place = ranges::iterator;

  struct room {  // for the entries of one segment
    std::map<address, std::size_t>::node_type segment;
    ranges::node_type whole;
    sizes::node_type listing;
  };
  static room make_room();
  void add(room&&, address base, std::size_t bytes) noexcept;
  void add(address base, std::size_t bytes) { add(make_room(), base, bytes); }
  room remove(address base) noexcept;                         // Requires: wholly free
  std::vector<address> wholly_free() const;                   // segments, by base
  std::size_t bytes_of(address segment) const { return segments_.at(segment); }

  // The smallest free range that holds `bytes` at that alignment, cut to size; end() when there is none. It is live then.
  // Requires: bytes a multiple of the granule, not 0; alignment a power of two. Throws: bad_alloc; nothing has changed then
  place take(std::size_t bytes, std::size_t alignment);
  place give(place) noexcept;                                 // becomes free and merges with its neighbours
  place find(address);                                        // the range that holds the address; end(): in no segment
  place end() { return ranges_.end(); }
  ranges& all() noexcept { return ranges_; }
  bool keeps_some_away() const noexcept {  // freed, and not known to be nobody's
    return std::any_of(ranges_.begin(), ranges_.end(), [](auto const& at) { return at.second.is == state::pending || at.second.is == state::quarantined; });
  }
  std::map<address, std::size_t> const& segments() const noexcept { return segments_; }
  std::size_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  std::size_t free_ranges() const noexcept { return by_size_.size(); }
  std::vector<std::string> validate() const;                  // what of the invariant does not hold

 private:
  place cut(place, std::size_t first_bytes);                  // free range in two; returns the second

  ranges ranges_;
  sizes by_size_;
  std::map<address, std::size_t> segments_;
};

}  // namespace weir::streams
