// A shadow: an interval map of the accesses to one physical memory that are not known to be complete.
// Threads: under the checker's lock.
//
// Invariant: of ordered accesses only the last is kept. A byte has at most one write, and reads after or
// racing with it.
#pragma once
#include <map>
#include <memory>
#include <utility>

#include <boost/container/small_vector.hpp>
#include <boost/smart_ptr/intrusive_ptr.hpp>

#include "runtime/base/call_site.h"
#include "simulator/checker/order_graph.h"

namespace weir::driver::check {

enum class action : std::uint8_t { reads, writes, allocates, frees, takes_over };
// How the bytes of a use are known: declared or told by its call; or by a pointer that a launch was given, from there
// to the end of the block or to its next pointer. One inside a structure may be stale.
enum class grain : std::uint8_t { exact, pointer, structure };

struct access {
  action how = action::reads;
  grain known = grain::exact;
  std::uint32_t holders = 0;  // of intrusive_ptr; under the checker's lock
  stream_id stream = 0;
  std::uint64_t n = 0;  // position in the stream
  base::site site;
  address at = 0;
  std::size_t bytes = 0;
  std::vector<epoch> also;                          // frees: further streams whose work it comes after
  bool captured = false;                            // part of a graph
  bool of_launch = false;                           // of a graph
  bool may_read_alone = false, may_be_end = false;  // as in block_use
  bool moves_a_pool = false;                        // between the device and where a pool sleeps
  // of a launch: becomes true once the graph and all its launches are gone. Null: not known, or no launch
  std::shared_ptr<base::atomic<bool> const> over;
  bool is_over() const noexcept { return over && over->load(); }
  bool writes() const noexcept { return how != action::reads; }
  template <class Holds>
  bool all_epochs(Holds holds) const {
    return holds(epoch{stream, n}) && std::all_of(also.begin(), also.end(), holds);
  }
};
inline void intrusive_ptr_add_ref(access* a) noexcept {
  ++a->holders;
}
inline void intrusive_ptr_release(access* a) noexcept {
  if (--a->holders == 0)
    delete a;
}
using access_ref = boost::intrusive_ptr<access>;
inline access_ref made(action how, epoch e, base::site site, address at, std::size_t bytes) {
  access_ref a(new access);
  a->how = how;
  a->stream = e.stream;
  a->n = e.n;
  a->site = site;
  a->at = at;
  a->bytes = bytes;
  return a;
}

class shadow {
 public:
  using offset = std::uint64_t;  // into the physical memory
  // past(old): complete, or ordered before this access? If not, and one of the two writes: clash(old), once.
  template <class Past, class Clash>
  void add(offset from, offset to, access_ref const& a, Past past, Clash clash);
  // Visits each access to [from, to). keep(a) false: forgets it there.
  template <class Keep>
  void each(offset from, offset to, Keep keep);
  std::size_t size() const noexcept { return cells_.size(); }

 private:
  struct cell {
    offset end = 0;
    access_ref write;
    boost::container::small_vector<access_ref, 2> reads;
    bool empty() const noexcept { return !write && reads.empty(); }
  };
  using map = std::map<offset, cell>;
  void split(offset);
  static void remember(boost::container::small_vector<access*, 8>& seen, access_ref const& a, auto&& call) {
    if (std::find(seen.begin(), seen.end(), a.get()) != seen.end())
      return;
    seen.push_back(a.get());
    call(*a);
  }
  map cells_;  // by start; disjoint
};

inline void shadow::split(offset x) {
  auto after = cells_.upper_bound(x);
  if (after == cells_.begin())
    return;
  auto const at = std::prev(after);
  if (at->first == x || at->second.end <= x)
    return;
  cell rest = at->second;
  at->second.end = x;
  cells_.emplace_hint(after, x, std::move(rest));
}

template <class Past, class Clash>
void shadow::add(offset from, offset to, access_ref const& a, Past past, Clash clash) {
  if (from >= to)
    return;
  split(from);
  split(to);
  boost::container::small_vector<access*, 8> clashed;
  auto at = cells_.lower_bound(from);
  if (a->writes()) {  // judged against all accesses there, and then in their place
    while (at != cells_.end() && at->first < to) {
      cell& c = at->second;
      if (c.write && !past(*c.write))
        remember(clashed, c.write, clash);
      for (access_ref const& r : c.reads)
        if (!past(*r))
          remember(clashed, r, clash);
      at = cells_.erase(at);
    }
    cell c;
    c.end = to;
    c.write = a;
    cells_.emplace_hint(at, from, std::move(c));
    return;
  }
  // A read is judged against the writes. It replaces the reads that it comes after.
  offset next = from;
  while (next < to) {
    if (at == cells_.end() || at->first > next) {  // unused bytes
      cell c;
      c.end = at == cells_.end() ? to : std::min(to, at->first);
      c.reads.push_back(a);
      offset const start = std::exchange(next, c.end);
      cells_.emplace_hint(at, start, std::move(c));
      continue;
    }
    cell& c = at->second;
    if (c.write && !past(*c.write))
      remember(clashed, c.write, clash);
    c.reads.erase(std::remove_if(c.reads.begin(), c.reads.end(), [&](access_ref const& r) { return past(*r); }),
                  c.reads.end());
    c.reads.push_back(a);
    next = c.end;
    ++at;
  }
}

template <class Keep>
void shadow::each(offset from, offset to, Keep keep) {
  if (from >= to)
    return;
  split(from);
  split(to);
  for (auto at = cells_.lower_bound(from); at != cells_.end() && at->first < to;) {
    cell& c = at->second;
    if (c.write && !keep(*c.write))
      c.write.reset();
    c.reads.erase(std::remove_if(c.reads.begin(), c.reads.end(), [&](access_ref const& r) { return !keep(*r); }),
                  c.reads.end());
    at = c.empty() ? cells_.erase(at) : std::next(at);
  }
}

}  // namespace weir::driver::check
