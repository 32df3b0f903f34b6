// Reuse of memory that other streams used: free when ordered, polled on a miss, by a device wait, at last by waiting on the host.
// Threads: any. No lock is held while a driver call runs.
//
// Invariant: nobody gets a byte before all stamps it was given back with are complete, or ordered before what its stream is given next.
#include <algorithm>
#include <limits>

#include "runtime/base/sync.h"
#include "runtime/memory/device_allocator.h"

namespace weir::memory {
namespace {
constexpr std::int64_t patience_ns = 2'000'000'000;  // for one fence, where ranks may be waiting for each other
constexpr std::int64_t nap_ns = 200'000;
constexpr int most_polls = 64;                       // where nothing moves by itself, waiting is asking
}  // namespace

std::size_t device_allocator::settle(stream_memory& m) {
  clock::timeline& home = *m.home.load();
  std::size_t bytes = 0;
  m.pending.settle([&](clock::stamp s, held_block& b) { return passed(home, s, b.since); },
                   [&](held_block const& b) {
                     bytes += b.bytes;
                     m.counts.held_no_more(b.cut ? observe::size_pool::small : observe::size_pool::large, b.bytes);
                     if (b.whole) {
                       m.pieces.give(*b.whole, home.now().n);
                     } else if (m.small.give(*b.cut, b.index)) {
                       return_run(m, *b.cut);
                     }
                   });
  return bytes;
}

std::size_t device_allocator::poll_pending(stream_memory& m) {
  std::size_t bytes = 0;
  for (;;) {
    std::vector<clock::stamp> fronts;
    {
      section const hold(m);
      bytes += settle(m);
      fronts = m.pending.fronts();
    }
    bool news = false;
    for (clock::stamp s : fronts) {
      auto const done = clocks_.poll(s);
      news |= done.ok() && done.value;
    }
    if (!news) return bytes;
  }
}

void* device_allocator::own_pending(stream_memory& mine, request const& r) {
  {
    section const hold(mine);
    if (mine.pending.empty()) return nullptr;
    if (settle(mine)) {
      if (void* const p = warm(mine, r)) return p;
    }
    if (mine.pending.empty()) return nullptr;
  }
  if (!poll_pending(mine)) return nullptr;
  section const hold(mine);
  return warm(mine, r);
}

void* device_allocator::from_others(stream_memory& mine, request const& r, std::size_t at_most) {
  if (streams_.load(base::memory_order_relaxed) < 2) return nullptr;
  clock::timeline& home = *mine.home.load();
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  for (stream_memory* other : memories()) {
    if (other == &mine) continue;
    section const hold(*other);
    std::uint64_t const id = other->home.load()->id();
    // What this stream itself gave back to the other one: ordered by being the same stream.
    held_block b;
    auto const suits = [&](held_block const& h) {
      return h.whole && h.stamps.size() == 1 && passed(home, {id, h.since}) && h.whole->bytes >= bytes && h.whole->bytes <= at_most && h.whole->at % alignment == 0;
    };
    if (other->pending.take(home.id(), suits, b)) {
      other->counts.held_no_more(observe::size_pool::large, b.bytes);
      b.whole->is = state::live;
      b.whole->marks.clear();
      return hand_out(*other, *b.whole, r, &home);
    }
    piece* const p = other->pieces.take_if(bytes, alignment, [&](piece const& f) { return passed(home, {id, f.freed}); });
    if (p) return hand_out(*other, *p, r, &home);
  }
  return nullptr;
}

// Asks about the free pieces that would do, oldest first: what was freed later is complete later.
std::size_t device_allocator::poll_others(stream_memory& mine, request const& r, int looks) {
  std::size_t bytes = 0;
  for (stream_memory* m : memories()) {
    if (m == &mine) continue;
    std::uint64_t stream = 0;
    std::map<std::uint64_t, std::size_t> by_stamp;  // bytes
    {
      section const hold(*m);
      stream = m->home.load()->id();
      m->pieces.some_free(r.rounded, looks, [&](piece const& p) {
        if (round_up(p.at, r.alignment) + r.rounded <= p.end()) by_stamp[p.freed] += p.bytes;
      });
    }
    for (auto const& [n, there] : by_stamp) {
      if (clocks_.complete({stream, n})) continue;  // looked at already
      auto const done = clocks_.poll({stream, n});
      if (!done.ok() || !done.value) break;
      bytes += there;
    }
  }
  return bytes;
}

void* device_allocator::behind_waits(stream_memory& mine, request const& r, std::size_t& gave) {
  clock::timeline& home = *mine.home.load();
  // A part of a collective that comes late holds up all other ranks, and what it would be put behind may wait for one of them, through
  // streams in between: a stream that carries collectives is never made to wait.
  if (home.carries_collectives()) return nullptr;
  auto const allowed = [](clock::stamp s) { return clock::find(s.stream) != nullptr; };
  // Its own blocks: wait for what other streams still do with them. The first that is large enough alone, else all.
  std::vector<clock::stamp> stamps;
  struct wanted_block {
    clock::stamp behind;
    address at;
    std::size_t bytes;
  };
  std::vector<wanted_block> wanted;  // for a witness
  auto const tell = [&](clock::stamp s, address at, std::size_t bytes) {
    clock::timeline const& other = *clock::find(s.stream);
    runtime_.witness()->wait_inserted({device_, home.handle()}, {other.device(), other.handle()}, at, bytes);
  };
  {
    section const hold(mine);
    bool alone = false;
    mine.pending.each([&](held_block const& b) {
      if (alone || !std::all_of(b.stamps.begin(), b.stamps.end(), allowed)) return;
      alone = b.whole && round_up(b.whole->at, r.alignment) + r.rounded <= b.whole->end();
      if (alone) stamps.clear(), wanted.clear();
      stamps.insert(stamps.end(), b.stamps.begin(), b.stamps.end());
      if (!runtime_.witness()) return;
      for (clock::stamp s : b.stamps) wanted.push_back({s, b.whole ? b.whole->at : b.cut->start(b.index), b.bytes});
    });
  }
  std::sort(stamps.begin(), stamps.end(), [](clock::stamp a, clock::stamp b) { return a.stream != b.stream ? a.stream < b.stream : a.n > b.n; });
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    if (i && stamps[i].stream == stamps[i - 1].stream) continue;  // the newest of a stream covers its others
    if (!home.wait(stamps[i]).ok()) continue;
    counts_.waited();
    for (wanted_block const& b : wanted) {
      if (b.behind.stream == stamps[i].stream) tell(stamps[i], b.at, b.bytes);
    }
  }
  if (!stamps.empty()) {
    section const hold(mine);
    gave += settle(mine);
  }
  if (gave) return nullptr;  // searched again by the caller

  // Others' free pieces: wait for the stream they were freed on.
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  for (stream_memory* other : memories()) {
    if (other == &mine) continue;
    clock::stamp newest;
    {
      section const hold(*other);
      newest.stream = other->home.load()->id();
      settle(*other);
      other->pieces.each_free([&](piece const& p) {
        if (round_up(p.at, alignment) + bytes <= p.end()) newest.n = std::max(newest.n, p.freed);
      });
    }
    if (newest.n == 0 || !allowed(newest) || passed(home, newest)) continue;
    if (!home.wait(newest).ok()) continue;
    counts_.waited();
    if (void* const p = from_others(mine, r, ~std::size_t{0})) {
      if (runtime_.witness()) tell(newest, reinterpret_cast<address>(p), bytes);
      gave += bytes;
      return p;
    }
  }
  return nullptr;
}

bool device_allocator::wait_for_oldest(std::vector<clock::stamp> const& also) {
  bool collectives = !also.empty();
  std::vector<clock::stamp> incomplete;
  for (stream_memory* m : memories()) {
    section const hold(*m);
    clock::timeline const& home = *m->home.load();
    collectives |= home.carries_collectives();
    for (clock::stamp s : m->pending.fronts()) {
      if (clock::timeline const* const t = clock::find(s.stream)) collectives |= t->carries_collectives();
      if (!clocks_.complete(s)) incomplete.push_back(s);
    }
    clock::stamp oldest;
    m->pieces.each_free([&](piece const& p) {
      if (p.freed && (!oldest.n || p.freed < oldest.n) && !clocks_.complete({home.id(), p.freed})) oldest = {home.id(), p.freed};
    });
    if (oldest.n) incomplete.push_back(oldest);
  }
  incomplete.insert(incomplete.end(), also.begin(), also.end());
  bool const moves = machine_.moves_by_itself();
  for (clock::stamp s : incomplete) {  // a stream whose device is lost never comes: the next one may
    if (!collectives) {
      if (clocks_.synchronize(s).ok()) return true;
      continue;
    }
    // Ranks may be waiting for this very thread: patience has an end.
    std::int64_t const until = moves ? base::now_ns() + patience_ns : 0;
    for (int polls = 0; moves ? base::now_ns() < until : polls < most_polls; ++polls) {
      auto const done = clocks_.poll(s);
      if (!done.ok()) break;
      if (done.value) return true;
      if (moves) base::sleep_ns(nap_ns);
    }
    if (clocks_.lost(device_)) return false;
  }
  return false;
}

}  // namespace weir::memory
