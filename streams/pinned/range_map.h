// The pinned pool's map of addresses: segments cut into ranges,
// in order of address, best fit, neighbours merged.
// Threads: one at a time; pinned_memory holds the lock.
//
// Of ranges that fit alike the one in the oldest segment serves, and there the lowest: where the system put a
// segment decides nothing, so that a run of a seed is the same in every process.
// Invariant: the ranges of a segment cover it without a gap, no two neighbours are both free, and the free
// ranges are exactly those listed by size.
#pragma once
#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <compare>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "runtime/driver/driver.h"
#include "streams/pinned/use_cache.h"

namespace weir::streams {

class pinned_space {
 public:
  using address = driver::address;
  // bytes: what sizes are rounded to; a cache line, so that no two blocks share one
  static constexpr std::size_t granule = 64;

  enum class state : std::uint8_t {
    free,
    live,
    pending,      // freed; a stream it was marked for has not passed its stamp
    quarantined,  // freed; a device that is lost may still write it: never handed out again
  };
  struct listed {
    std::size_t bytes = 0;
    std::uint64_t segment = 0;               // its number, by age
    address at = 0;
    auto operator<=>(listed const&) const = default;
  };
  using sizes = std::set<listed>;
  // as many as nearly all blocks need, so that noting one cannot fail
  template <class T>
  using few = boost::container::small_vector<T, 4>;
  struct range {
    std::size_t bytes = 0;
    address segment = 0;                     // its base
    std::uint64_t age = 0;                   // its segment's number
    state is = state::free;
    bool use_forgotten = false;              // no room to note a mark: nobody can know when it is unused
    std::size_t requested = 0;               // bytes
    few<clock::timeline*> users{};           // while live: marked for these
    few<clock::stamp> stamps{};              // exact uses; once freed, all of them
    // while live: exact uses more, of streams it was looked up for to be copied again and again
    few<pinned_use*> last{};
    sizes::node_type listing{};  // unless free: its entry in the list by size, so that giving it back never allocates
  };
  using ranges = std::map<address, range>;
  using place = ranges::iterator;

  struct segment {
    address base = 0;
    std::size_t bytes = 0;
    int node = -1;                           // of the host's memory it lies on; -1: not known
    std::int64_t idle_since = 0;             // ns, when it was last noted to be wholly free
  };
  using segments_by_age = std::map<std::uint64_t, segment>;
  struct room {  // for the entries of one segment
    segments_by_age::node_type segment;
    ranges::node_type whole;
    sizes::node_type listing;
  };
  static room make_room();
  void add(room&&, address base, std::size_t bytes, int node = -1) noexcept;
  void add(address base, std::size_t bytes, int node = -1) { add(make_room(), base, bytes, node); }
  room remove(address base) noexcept;                         // Requires: wholly free
  // segments, oldest first; idle since then or longer
  std::vector<address> wholly_free(std::int64_t idle_since = std::numeric_limits<std::int64_t>::max()) const;
  segment const& segment_of(address base) const { return segments_.at(ranges_.at(base).age); }
  bool is_whole(place at) const { return at->second.bytes == segments_.at(at->second.age).bytes; }
  void note_idle(place whole, std::int64_t now) noexcept { segments_.find(whole->second.age)->second.idle_since = now; }

  // The smallest free range that holds `bytes` at that alignment, cut to size; end() when there is none. It
  // is live then. One that lies on `node` comes before all others; -1: any.
  // Requires: bytes a multiple of the granule, not 0;
  // alignment a power of two. Throws: bad_alloc; nothing has changed then
  place take(std::size_t bytes, std::size_t alignment, int node = -1);
  place give(place) noexcept;                                 // becomes free and merges with its neighbours
  place find(address);                                        // the range that holds the address; end(): in no segment
  place end() { return ranges_.end(); }
  ranges& all() noexcept { return ranges_; }
  template <class Do>
  void each(Do act) const {                                   // ranges, the oldest segment's first
    for (auto const& [age, one] : segments_) {
      for (auto at = ranges_.find(one.base); at != ranges_.end() && at->second.age == age; ++at) act(at->second);
    }
  }
  bool keeps_some_away() const noexcept {  // freed, and not known to be nobody's
    return std::any_of(ranges_.begin(), ranges_.end(), [](auto const& at) {
      return at.second.is == state::pending || at.second.is == state::quarantined;
    });
  }
  segments_by_age const& segments() const noexcept { return segments_; }
  std::size_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->bytes; }
  std::size_t free_ranges() const noexcept { return by_size_.size(); }
  std::vector<std::string> validate() const;                  // what of the invariant does not hold

 private:
  place cut(place, std::size_t first_bytes);                  // free range in two; returns the second
  place take_on(std::size_t bytes, std::size_t alignment, int node);  // -1: any

  ranges ranges_;
  sizes by_size_;
  segments_by_age segments_;
  std::uint64_t next_age_ = 0;
  bool mixed_ = false;  // there have been segments of several nodes
};

// Small lists of stamps and streams, as blocks keep them. Threads: one at a time a list.
template <class Stamps, class Goes>
void drop_if(Stamps& stamps, Goes goes) {
  stamps.erase(std::remove_if(stamps.begin(), stamps.end(), goes), stamps.end());
}

// Returns: there was room for it.
template <class All, class One>
bool note(All& all, One one) noexcept {
  try {
    all.push_back(one);
    return true;
  } catch (...) {
    return false;
  }
}

template <class Stamps>
void join(Stamps& stamps, clock::stamp s) {
  if (!s.stream) return;
  for (auto& one : stamps) {
    if (one.stream == s.stream) {
      one.n = std::max(one.n, s.n);
      return;
    }
  }
  stamps.push_back(s);
}

}  // namespace weir::streams
