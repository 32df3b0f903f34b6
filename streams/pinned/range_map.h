// The address map of the pinned pool: segments cut into ranges, best fit, neighbours merged.
// Threads: one at a time; pinned_memory holds the lock.
//
// Of equal ranges, the lowest in the oldest segment is used: a seeded run is the same in every process.
// Invariant: ranges cover a segment without holes, no two neighbours are free, all free ones are in by_size_.
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
#include "runtime/memory/blocks/heap_block.h"
#include "streams/pinned/use_cache.h"

namespace weir::streams {

class pinned_space {
 public:
  using address = driver::address;
  // sizes are rounded up to this many bytes: a cache line, so that no two blocks share one
  static constexpr std::size_t granule = 64;

  enum class state : std::uint8_t {
    free,
    live,
    pending,      // freed; a stream it was marked for has not completed its stamp
    quarantined,  // freed; a lost device may still write it: never reused
  };
  struct listed {
    std::size_t bytes = 0;
    std::uint64_t segment = 0;  // number, by age
    address at = 0;
    auto operator<=>(listed const&) const = default;
  };
  using sizes = std::set<listed>;
  // the size that suffices for nearly all blocks, so that noting one rarely allocates
  template <class T>
  using few = boost::container::small_vector<T, 4>;
  struct range {
    std::size_t bytes = 0;
    address segment = 0;    // its base
    std::uint64_t age = 0;  // its segment's number
    state is = state::free;
    bool use_forgotten = false;       // a mark could not be noted: the end of its use is unknown
    std::size_t requested = 0;        // bytes
    few<memory::block_user> users{};  // while live: marked for these streams
    few<clock::stamp> stamps{};       // exact uses; after the free, all uses
    // while live: exact uses by streams that look() cached for repeated copies
    few<pinned_use*> last{};
    sizes::node_type listing{};  // unless free: its list node, so that a free never allocates
  };
  using ranges = std::map<address, range>;
  using place = ranges::iterator;

  struct segment {
    address base = 0;
    std::size_t bytes = 0;
    int node = -1;                // NUMA node; -1: unknown
    std::int64_t idle_since = 0;  // ns, when it last became wholly free
  };
  using segments_by_age = std::map<std::uint64_t, segment>;
  struct entries {  // list nodes for a segment
    segments_by_age::node_type segment;
    ranges::node_type whole;
    sizes::node_type listing;
  };
  static entries make_entries();
  void add(entries&&, address base, std::size_t bytes, int node = -1) noexcept;
  void add(address base, std::size_t bytes, int node = -1) { add(make_entries(), base, bytes, node); }
  entries remove(address base) noexcept;  // Requires: wholly free
  // segments idle since then or longer, oldest first
  std::vector<address> wholly_free(std::int64_t idle_since = std::numeric_limits<std::int64_t>::max()) const;
  segment const& segment_of(address base) const { return segments_.at(ranges_.at(base).age); }
  bool is_whole(place at) const { return at->second.bytes == segments_.at(at->second.age).bytes; }
  void note_idle(place whole, std::int64_t now) noexcept { segments_.find(whole->second.age)->second.idle_since = now; }

  // The smallest free range that holds `bytes` at that alignment, cut to size and made live. end(): none.
  // `node` is preferred; -1: any. Requires: bytes a positive multiple of the granule; alignment a power of 2.
  // Throws: bad_alloc; nothing has changed
  place take(std::size_t bytes, std::size_t alignment, int node = -1);
  place give(place) noexcept;  // makes it free and merges it with its neighbours
  place find(address);         // the range with that address; end(): none
  place end() { return ranges_.end(); }
  ranges& all() noexcept { return ranges_; }
  template <class Do>
  void each(Do act) const {  // by age of segments
    for (auto const& [age, one] : segments_) {
      for (auto at = ranges_.find(one.base); at != ranges_.end() && at->second.age == age; ++at)
        act(at->second);
    }
  }
  bool keeps_some_away() const noexcept {  // pending or quarantined
    return std::any_of(ranges_.begin(), ranges_.end(), [](auto const& at) {
      return at.second.is == state::pending || at.second.is == state::quarantined;
    });
  }
  segments_by_age const& segments() const noexcept { return segments_; }
  std::size_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->bytes; }
  std::size_t free_ranges() const noexcept { return by_size_.size(); }
  std::vector<std::string> validate() const;  // violations of the invariant

 private:
  place cut(place, std::size_t first_bytes);                          // cuts a free range in two; returns the second
  place take_on(std::size_t bytes, std::size_t alignment, int node);  // -1: any

  ranges ranges_;
  sizes by_size_;
  segments_by_age segments_;
  std::uint64_t next_age_ = 0;
  bool mixed_ = false;  // segments of several nodes were added
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
  if (!s.stream)
    return;
  for (auto& one : stamps) {
    if (one.stream == s.stream) {
      one.n = std::max(one.n, s.n);
      return;
    }
  }
  stamps.push_back(s);
}

}  // namespace weir::streams
