// Queries the driver for completed work, front by front, and waits for it.
// Threads: as completion_poller.h.
#include "runtime/memory/device/completion_poller.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "runtime/memory/device/searches.h"

namespace weir::memory {

// Each stream is queried in the order of its work up to its first incomplete stamp, once for all heaps.
void completion_poller::reclaim_complete() {
  std::unordered_map<std::uint64_t, std::uint64_t> not_done;  // by stream: the number from which on nothing is complete
  for (bool news = true; news;) {
    news = false;  // until a query finds something complete
    std::vector<clock::stamp> fronts;
    heaps_.index.some(heap_index::waits, 0, [&](stream_heap& m) {
      if (m.bytes_pending() == 0)
        return false;  // the next heap
      session in(m);
      (void)in.reclaim();
      auto const here = in.fronts();
      fronts.insert(fronts.end(), here.begin(), here.end());
      return false;
    });
    std::sort(fronts.begin(), fronts.end(),
              [](clock::stamp a, clock::stamp b) { return a.stream != b.stream ? a.stream < b.stream : a.n < b.n; });
    for (clock::stamp const s : fronts) {
      std::uint64_t& not_done_from = not_done.try_emplace(s.stream, ~std::uint64_t{0}).first->second;
      if (s.n >= not_done_from)
        continue;
      auto const done = of_.clocks.poll(s);
      if (done.ok() && done.value)
        news = true;
      else
        not_done_from = s.n;
    }
  }
}

std::size_t completion_poller::poll(stream_heap& m, std::size_t questions) {
  std::size_t bytes = 0;
  while (m.bytes_pending() > 0) {
    std::vector<clock::stamp> fronts;
    {
      session in(m);
      bytes += in.reclaim();
      fronts = in.fronts();
    }
    bool news = false;
    // If not all are asked, each call begins with another one.
    std::size_t const first =
        fronts.size() > questions ? heaps_.scan_start.fetch_add(1, base::memory_order_relaxed) : 0;
    for (std::size_t i = 0; i < std::min(fronts.size(), questions); ++i) {
      auto const done = of_.clocks.poll(fronts[(first + i) % fronts.size()]);
      news |= done.ok() && done.value;
    }
    if (!news)
      break;
  }
  return bytes;
}

// Queries free blocks that would fit, oldest first: later ones complete later.
std::size_t completion_poller::poll_others(stream_heap& mine, alloc_request const& r, std::size_t streams,
                                           std::size_t most_donors) {
  std::size_t bytes = 0;
  heaps_.donors_for(mine, r.rounded, most_donors, [&](stream_heap& m) {
    std::uint64_t stream = 0;
    std::map<std::uint64_t, std::size_t> by_stamp;  // bytes
    {
      session const in(m);
      stream = m.home().id();
      in.some_free(r.rounded, looks, [&](heap_block const& p) {
        of_.count_search(1);
        if (round_up(p.at, r.alignment) + r.rounded <= p.end())
          by_stamp[p.freed] += p.bytes;
      });
    }
    bool asked = false;
    for (auto const& [n, freed_then] : by_stamp) {
      // The caller's search had these already.
      if (of_.clocks.complete({stream, n}))
        continue;
      asked = true;
      auto const done = of_.clocks.poll({stream, n});
      if (!done.ok() || !done.value)
        break;
      bytes += freed_then;
    }
    if (asked)
      --streams;
    return streams == 0;
  });
  return bytes;
}

// The oldest unknown of some free blocks; if all of these are known, the newest of all.
clock::stamp completion_poller::oldest_unknown(session const& in) const {
  clock::stream_clock const& home = in.heap().home();
  clock::stamp oldest{home.id(), 0};
  in.any_free(looks, [&](heap_block const& p) {
    if (p.freed && (!oldest.n || p.freed < oldest.n) && !of_.clocks.complete({home.id(), p.freed}))
      oldest.n = p.freed;
  });
  if (!oldest.n && in.free_blocks() > looks && !of_.clocks.complete({home.id(), in.newest_given()}))
    oldest.n = in.newest_given();
  return oldest;
}

bool completion_poller::wait_for_oldest(std::vector<clock::stamp> const& also) {
  bool ranks_may_wait = !also.empty();  // perhaps for this thread: no wait may last
  std::vector<clock::stamp> incomplete;
  for (stream_heap* m : heaps_.all()) {
    session const in(*m);
    clock::stream_clock const& home = m->home();
    ranks_may_wait |= home.carries_collectives();
    for (clock::stamp s : in.fronts()) {
      if (clock::stream_clock const* const t = clock::find(s.stream))
        ranks_may_wait |= t->carries_collectives();
      if (!of_.clocks.complete(s))
        incomplete.push_back(s);
    }
    if (clock::stamp const s = oldest_unknown(in); s.n)
      incomplete.push_back(s);
  }
  incomplete.insert(incomplete.end(), also.begin(), also.end());
  of_.count_search(incomplete.size());
  // A stream of another device that is lost never completes; the next may.
  for (clock::stamp s : incomplete) {
    driver::status const done = ranks_may_wait ? of_.clocks.ask_for_a_while(s) : of_.clocks.synchronize(s);
    if (done.ok())
      return true;
    if (of_.clocks.lost(of_.device))
      return false;
  }
  return false;
}

void completion_poller::finish_all() {
  auto const all = heaps_.all();
  for (stream_heap* m : all)
    m->finish();
  for (stream_heap* m : all)
    session(*m).reclaim();
  for (stream_heap* m : all)
    m->finish();  // again: what was reclaimed may have a later free stamp
}

}  // namespace weir::memory
