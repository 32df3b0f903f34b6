// Reuse of memory that other streams used:
// free when ordered, polled on a miss, by a device wait, at last by waiting on the host.
// Threads: any. No lock is held while a driver call runs.
//
// Invariant: nobody gets a byte before all stamps it was given back with are complete, or ordered before what
// its stream is given next. What a miss looks at does not grow with the number of blocks that wait, nor of
// free pieces. docs/decisions/reuse.md says why each.
#include <algorithm>

#include "runtime/base/sync.h"
#include "runtime/core/log.h"
#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {
namespace {
constexpr int looks = 64;                            // blocks or pieces of one stream that would do
constexpr std::size_t asked_a_miss = lenders::few;   // streams; another time the others
constexpr std::size_t looked_at_a_miss = 32;         // streams that may have what is wanted, likewise
constexpr int fences_when_sought = 4;
constexpr unsigned often_borrowed = 8;               // blocks of others in turn, before a stream gets pages for them
constexpr std::size_t most_streams_with_a_page = 16;
// So many blocks are left to those who still use them before a stream waits for one. Not two: where blocks of
// one stage serve the next when they come free, two leave a pipeline of three stages no block that is not in
// use, and each hiccup stops all of them.
constexpr std::size_t ahead = 3;
constexpr std::size_t ahead_of_many = 32;            // of the newest 64, where hundreds wait
constexpr std::size_t ahead_in_order = 2;            // deterministic
}  // namespace

// Who lives on what others leave misses each time, asks and takes the locks of all, and takes from others
// what they miss next: among threads each pair of a block costs microseconds. Where the bound has room for
// pages of its own it gets them; for small blocks there is a page a stream.
bool device_allocator::due_its_own(stream_memory& mine, request const& r, std::size_t& spare) {
  if (r.size_class >= 0 || mine.borrowed.load(base::memory_order_relaxed) < often_borrowed) return false;
  mine.borrowed.store(0, base::memory_order_relaxed);
  std::size_t const page = space_.page_bytes();
  std::size_t const others = std::min(streams_.size(), most_streams_with_a_page) - 1;
  std::size_t const theirs = r.rounded <= page / 2 ? page * others : 0;
  in_use n = used();
  n.pending = 0;  // what waits may be complete
  if (counts_.reserved() + round_up(r.rounded, page) > most_reserved(n, r.rounded) + page + theirs) return false;
  spare = theirs;
  return true;
}

void* device_allocator::reuse(stream_memory& mine, request const& r) {
  if (deterministic_) return in_order_of_calls(mine, r);
  if (void* const p = own_pending(mine, r)) return p;
  if (r.size_class >= 0) {
    if (void* const p = own_in_outboxes(mine, r)) return p;
  } else if (streams_.size() > 1) {
    auto const borrow = [&](std::size_t at_most) {
      void* const p = from_others(mine, r, at_most, looked_at_a_miss);
      if (p) mine.borrowed.fetch_add(1, base::memory_order_relaxed);
      return p;
    };
    // a lent block goes out whole: of a larger one nobody else would have the rest
    if (void* const p = borrow(r.rounded + r.rounded / 8)) return p;
    if (polls_) {  // what lies mapped and complete elsewhere costs nothing, new pages and moves do
      std::size_t left = asked_a_miss;
      streams_.some(lenders::waits, turn_.fetch_add(1, base::memory_order_relaxed), [&](stream_memory& m) {
        (void)poll_pending(m, asked_a_miss / 4);
        return --left == 0;
      });
      (void)poll_others(mine, r, asked_a_miss, looked_at_a_miss);
      if (void* const p = borrow(~std::size_t{0})) return p;
    }
  }
  if (waits_ == options::wait_policy::before_growth) {
    if (void* const p = behind_oldest(mine, r)) return p;
  }
  if (!polls_ || !grows_for_what_waits(mine, r)) return nullptr;
  settle_all_that_is_complete();
  {
    section const hold(mine);
    if (void* const p = warm(mine, r)) return p;
  }
  return r.size_class < 0 ? from_others(mine, r, ~std::size_t{0}) : nullptr;
}

// Would more be reserved than the bound allows if nothing was waiting? What waits may be complete:
// it counts as in use until somebody asks.
bool device_allocator::grows_for_what_waits(stream_memory const& mine, request const& r) {
  if (streams_.many() && !streams_.any(lenders::waits)) return false;
  in_use n = used();
  if (std::exchange(n.pending, 0) == 0) return false;
  if (streams_.size() == 1) {
    base::owned_lock const hold(mine.lock);
    if (mine.pending.fronts().size() <= asked_a_miss) return false;  // all were asked about just now
  }
  std::size_t const most = (r.size_class < 0 ? r.rounded + r.alignment : slabs::usual_run_bytes) + space_.page_bytes();
  return counts_.reserved() + most > most_reserved(n, r.rounded);
}

// Each stream is asked in the order of its work, once more than it had done,
// however many memories have blocks that wait for it.
void device_allocator::settle_all_that_is_complete() {
  std::unordered_map<std::uint64_t, std::uint64_t> not_done;  // number, by stream
  for (bool news = true; news;) {
    news = false;
    std::vector<clock::stamp> fronts;
    streams_.some(lenders::waits, 0, [&](stream_memory& m) {
      if (m.counts.bytes_pending() == 0) return false;
      section const hold(m);
      (void)settle(m);
      auto const here = m.pending.fronts();
      fronts.insert(fronts.end(), here.begin(), here.end());
      return false;
    });
    std::sort(fronts.begin(), fronts.end(),
              [](clock::stamp a, clock::stamp b) { return a.stream != b.stream ? a.stream < b.stream : a.n < b.n; });
    for (clock::stamp const s : fronts) {
      std::uint64_t& from = not_done.try_emplace(s.stream, ~std::uint64_t{0}).first->second;
      if (s.n >= from) continue;
      auto const done = clocks_.poll(s);
      if (done.ok() && done.value) news = true;
      else from = s.n;
    }
  }
}

// Deterministic: a miss looks at what was given back first,
// and waits for it on the device, whether it is complete or not.
void* device_allocator::in_order_of_calls(stream_memory& mine, request const& r) {
  if (waits_ == options::wait_policy::never || mine.home.load()->carries_collectives()) return nullptr;
  for (;;) {
    std::vector<clock::stamp> stamps;
    std::uint64_t turn = 0;
    {
      section const hold(mine);
      if (mine.pending.size() <= ahead_in_order) return nullptr;
      stamps = mine.pending.oldest()->stamps;
      turn = mine.pending.oldest()->turn;
    }
    step(1);
    for (clock::stamp const s : stamps) {
      if (put_behind(mine, s) == behind::refused) return nullptr;
    }
    section const hold(mine);
    if (mine.pending.empty() || mine.pending.oldest()->turn != turn) continue;
    mine.pending.settle_oldest([&](held_block const& b) { settled(mine, b, mine.home.load()->now().n); });
    if (void* const p = warm(mine, r)) return p;
  }
}

void device_allocator::settled(stream_memory& m, held_block const& b, std::uint64_t freed) noexcept {
  if (b.whole) {
    m.counts.held_no_more(observe::size_pool::large, b.bytes);
    tell_held(observe::action::settled, b.whole->at, b.bytes, 0);
    return m.pieces.give(*b.whole, freed);
  }
  m.counts.held_no_more(observe::size_pool::small, b.bytes, b.slots());
  b.each_slot([&](slabs::taken s) {
    tell_held(observe::action::settled, s.from->start(s.index), s.from->size, 0);
    if (m.small.give(*s.from, s.index, freed)) return_run(m, *s.from);
  });
}

void device_allocator::note_waiting(stream_memory& m) noexcept {
  std::int64_t bytes = 0;
  for (thread_cache const* c : m.caches) bytes += c->out.untold_here().bytes;
  if (bytes) m.counts.also_waiting(bytes);
}

std::size_t device_allocator::settle(stream_memory& m) {
  clock::timeline& home = *m.home.load();
  std::size_t bytes = 0;
  m.pending.settle(
      [&](clock::stamp s, held_block& b) {
        bool const yes = passed(home, s, b.since);
        step(!yes);  // what is passed is what it returns
        return yes;
      },
      [&](held_block const& b) {
        if (bytes == 0) note_waiting(m);
        bytes += b.bytes;
        settled(m, b, b.since);
      });
  return bytes;
}

std::size_t device_allocator::poll_pending(stream_memory& m, std::size_t questions) {
  std::size_t bytes = 0;
  for (;;) {
    std::vector<clock::stamp> fronts;
    {
      section const hold(m);
      if (m.pending.empty()) return bytes;
      bytes += settle(m);
      fronts = m.pending.fronts();
    }
    bool news = false;
    std::size_t const first = fronts.size() > questions ? turn_.fetch_add(1, base::memory_order_relaxed) : 0;
    for (std::size_t i = 0; i < std::min(fronts.size(), questions); ++i) {
      auto const done = clocks_.poll(fronts[(first + i) % fronts.size()]);
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
    if (mine.pending.empty() || !polls_) return nullptr;
  }
  if (!poll_pending(mine, asked_a_miss)) return nullptr;
  section const hold(mine);
  return warm(mine, r);
}

// What threads have not sent home yet, before the memory grows.
void* device_allocator::own_in_outboxes(stream_memory& mine, request const& r) {
  if (!empty_outboxes(mine)) return nullptr;
  return own_pending(mine, r);
}

void* device_allocator::from_others(stream_memory& mine, request const& r, std::size_t at_most,
                                    std::size_t most_lenders) {
  if (streams_.size() < 2) return nullptr;
  clock::timeline& home = *mine.home.load();
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  void* out = nullptr;
  lenders_for(mine, bytes, most_lenders, [&](stream_memory& other) {
    section const hold(other);
    if (streams_.many()) other.lock.disown();  // else it would be listed by what it had, and looked at again and again
    step(1);
    other.sought = fences_when_sought, other.quiet = 0;
    clock::timeline const& line = *other.home.load();
    std::uint64_t const up_to = home.covers_up_to(line);
    // What this stream itself gave back to the other one: ordered by being the same stream.
    held_block b;
    auto const suits = [&](held_block const& h) {
      return h.whole && h.stamps.size() == 1 && h.since <= up_to && h.whole->bytes >= bytes &&
             h.whole->bytes <= at_most && h.whole->at % alignment == 0;
    };
    if (other.pending.take(home.id(), suits, b)) {
      note_waiting(other);
      other.counts.held_no_more(observe::size_pool::large, b.bytes);
      tell_held(observe::action::settled, b.whole->at, b.bytes, 0);
      b.whole->is = state::live;
      b.whole->marks.clear();
      out = hand_out(other, *b.whole, r, &home);
      return true;
    }
    piece* const p = other.pieces.take_if(bytes, alignment, [&](piece const& f) { return step(1), f.freed <= up_to; });
    if (p) out = hand_out(other, *p, r, &home);
    return p != nullptr;
  });
  return out;
}

// Asks about free pieces that would do, oldest first: what was freed later is complete later.
std::size_t device_allocator::poll_others(stream_memory& mine, request const& r, std::size_t streams,
                                          std::size_t most_lenders) {
  std::size_t bytes = 0;
  lenders_for(mine, r.rounded, most_lenders, [&](stream_memory& m) {
    std::uint64_t stream = 0;
    std::map<std::uint64_t, std::size_t> by_stamp;  // bytes
    {
      section const hold(m);
      stream = m.home.load()->id();
      m.pieces.some_free(r.rounded, looks, [&](piece const& p) {
        step(1);
        if (round_up(p.at, r.alignment) + r.rounded <= p.end()) by_stamp[p.freed] += p.bytes;
      });
    }
    bool asked = false;
    for (auto const& [n, there] : by_stamp) {
      if (clocks_.complete({stream, n})) continue;  // looked at already
      asked = true;
      auto const done = clocks_.poll({stream, n});
      if (!done.ok() || !done.value) break;
      bytes += there;
    }
    streams -= asked;
    return streams == 0;
  });
  return bytes;
}

void device_allocator::tell_wait(stream_memory& mine, clock::stamp s, address at, std::size_t bytes) const {
  if (!runtime_.witness()) [[likely]] return;
  clock::timeline const& other = *clock::find(s.stream);
  runtime_.witness()->wait_inserted({device_, mine.home.load()->handle()}, {other.device(), other.handle()}, at, bytes);
}

device_allocator::behind device_allocator::put_behind(stream_memory& mine, clock::stamp s) {
  clock::timeline& home = *mine.home.load();
  if (!clock::find(s.stream) || passed(home, s)) return behind::already;
  bool behind_all = false;
  if (!home.wait(s, &behind_all).ok()) return behind::refused;
  counts_.waited(behind_all);
  if (logs(runtime_, log_level::debug)) [[unlikely]]
    log(log_level::debug, {device_, home.id()},
        "made to wait for stream " + std::to_string(s.stream) + ", for its memory");
  return behind::waits;
}

// A host that runs ahead gives back what is not complete before it has gone on, and memory would grow with
// the distance. The block given back first is waited for, when a fence is there that leaves others of its
// kind to those who still use them: so the stream stays a few blocks ahead, and no wait covers more than it
// must. Slots are so small that nothing is waited for before many of them wait.
void* device_allocator::behind_oldest(stream_memory& mine, request const& r) {
  if (mine.home.load()->carries_collectives()) return nullptr;
  std::vector<clock::stamp> stamps;
  address at = 0;
  std::size_t bytes = 0;
  {
    section const hold(mine);
    held_block const* const oldest = worth_a_wait(mine, r);
    if (!oldest) return nullptr;
    stamps = oldest->stamps;
    at = oldest->whole ? oldest->whole->at : oldest->cut->start(oldest->index);
    bytes = oldest->bytes;
  }
  for (clock::stamp const s : stamps) {
    behind const now = put_behind(mine, s);
    if (now == behind::refused) return nullptr;
    if (now == behind::waits) tell_wait(mine, s, at, bytes);
  }
  section const hold(mine);
  (void)settle(mine);
  return warm(mine, r);
}

// Null: none, or too few others would be left. Requires: the lock.
held_block const* device_allocator::worth_a_wait(stream_memory& mine, request const& r) {
  bool const in_slots = r.size_class >= 0;
  bool const many = (in_slots ? mine.pending.bytes_in_slots() : mine.pending.bytes()) > 2 * fence_after(mine, 8);
  if (in_slots ? !many : mine.pending.size() <= ahead) return nullptr;
  auto const alike = [&](held_block const& b) {
    if (in_slots) return b.cut && b.cut->size_class == r.size_class;
    return b.whole && b.bytes >= r.rounded && b.bytes <= 2 * r.rounded &&
           round_up(b.whole->at, r.alignment) + r.rounded <= b.whole->end();
  };
  held_block const* oldest = nullptr;
  auto const older = [&](held_block const& b) {
    step(1);
    if (alike(b) && (!oldest || b.turn < oldest->turn)) oldest = &b;
    return in_slots ? oldest != nullptr : b.bytes > 2 * r.rounded;
  };
  in_slots ? mine.pending.first_given(looks, older) : mine.pending.fitting(r.rounded, looks, older);
  if (!oldest) return nullptr;

  std::vector<clock::stamp> fences;  // the wait would be for these
  for (clock::stamp const s : oldest->stamps) {
    clock::timeline* const user = clock::find(s.stream);
    if (user && user->carries_collectives()) return nullptr;
    if (!user || passed(*mine.home.load(), s)) continue;
    fences.push_back({s.stream, user->fence_covering(s.n)});
    if (fences.back().n == 0) return nullptr;
  }
  bool enough_left = false;
  auto const waits_on = [&](clock::stamp s) {
    return std::none_of(fences.begin(), fences.end(),
                        [&](clock::stamp f) { return f.stream == s.stream && f.n >= s.n; });
  };
  auto const enough = [&](std::size_t needed) {
    return [&, needed, beyond = std::size_t{0}](held_block const& b) mutable {
      step(1);
      if ((in_slots ? b.cut != nullptr : alike(b)) && std::any_of(b.stamps.begin(), b.stamps.end(), waits_on))
        beyond += in_slots ? b.slots() : 1;
      return enough_left = beyond >= needed;
    };
  };
  if (!in_slots) mine.pending.fitting(r.rounded, looks, enough(ahead));
  // those looked at above lie before one fence
  if (!enough_left && many) mine.pending.last_given(looks, enough(ahead_of_many));
  return enough_left ? oldest : nullptr;
}

// Its own blocks: wait for what other streams still do with one that is large enough alone,
// the smallest and oldest; else with all.
void* device_allocator::behind_own(stream_memory& mine, request const& r, std::size_t& gave) {
  std::vector<clock::stamp> stamps;
  struct wanted_block {
    clock::stamp behind;
    address at;
    std::size_t bytes;
  };
  std::vector<wanted_block> wanted;  // for a witness
  {
    section const hold(mine);
    auto const want = [&](held_block const& b) {
      for (clock::stamp const s : b.stamps)
        wanted.push_back({s, b.whole ? b.whole->at : b.cut->start(b.index), b.bytes});
    };
    mine.pending.fitting(r.rounded, looks, [&](held_block const& b) {
      step(1);
      if (round_up(b.whole->at, r.alignment) + r.rounded > b.whole->end()) return false;
      stamps = b.stamps;
      want(b);
      return true;
    });
    if (stamps.empty()) {
      stamps = mine.pending.newest();
      step(stamps.size());
      if (runtime_.witness()) mine.pending.each(want);
    }
  }
  for (clock::stamp const s : stamps) {
    if (put_behind(mine, s) != behind::waits) continue;
    for (wanted_block const& b : wanted) {
      if (b.behind.stream == s.stream) tell_wait(mine, s, b.at, b.bytes);
    }
  }
  if (stamps.empty()) return nullptr;
  section const hold(mine);
  gave += settle(mine);
  return nullptr;  // searched again by the caller
}

void* device_allocator::behind_waits(stream_memory& mine, request const& r, std::size_t& gave) {
  clock::timeline& home = *mine.home.load();
  // A part of a collective that comes late holds up all other ranks, and what it would be put behind may wait
  // for one of them, through streams in between: a stream that carries collectives is never made to wait.
  if (home.carries_collectives()) return nullptr;
  (void)behind_own(mine, r, gave);
  if (gave) return nullptr;

  // Others' free pieces: the one freed first, of those of a stream that were looked at.
  std::size_t const bytes = std::max(round_up(r.rounded, bins::unit), granule);
  std::size_t const alignment = std::max(r.alignment, bins::unit);
  void* out = nullptr;
  // what waits may join what is free
  streams_.some(lenders::at_least(bytes) | lenders::waits, 0, [&](stream_memory& other) {
    if (&other == &mine || !may_lend(other, mine)) return false;
    clock::stamp oldest;
    {
      section const hold(other);
      oldest.stream = other.home.load()->id();
      settle(other);
      other.pieces.some_free(bytes, looks, [&](piece const& p) {
        step(1);
        if (round_up(p.at, alignment) + bytes <= p.end() && (!oldest.n || p.freed < oldest.n)) oldest.n = p.freed;
      });
    }
    if (oldest.n == 0 || put_behind(mine, oldest) != behind::waits) return false;
    if (!(out = from_others(mine, r, ~std::size_t{0}))) return false;
    tell_wait(mine, oldest, reinterpret_cast<address>(out), bytes);
    gave += bytes;
    return true;
  });
  return out;
}

// The oldest of some; of one of them at least, if any is unknown: then of the newest.
clock::stamp device_allocator::oldest_unknown(stream_memory& m) const {
  clock::timeline const& home = *m.home.load();
  clock::stamp oldest{home.id(), 0};
  m.pieces.any_free(looks, [&](piece const& p) {
    if (p.freed && (!oldest.n || p.freed < oldest.n) && !clocks_.complete({home.id(), p.freed})) oldest.n = p.freed;
  });
  if (!oldest.n && m.pieces.free_pieces() > looks && !clocks_.complete({home.id(), m.pieces.newest_given()}))
    oldest.n = m.pieces.newest_given();
  return oldest;
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
    if (clock::stamp const s = oldest_unknown(*m); s.n) incomplete.push_back(s);
  }
  incomplete.insert(incomplete.end(), also.begin(), also.end());
  step(incomplete.size());
  for (clock::stamp s : incomplete) {  // a stream whose device is lost never comes: the next one may
    if ((collectives ? clocks_.ask_for_a_while(s) : clocks_.synchronize(s)).ok()) return true;
    if (clocks_.lost(device_)) return false;
  }
  return false;
}

void device_allocator::finish(stream_memory& m) {
  std::vector<clock::stamp> stamps;
  {
    section const hold(m);
    stamps = m.pending.newest();
    stamps.push_back(m.home.load()->now());
  }
  for (clock::stamp const s : stamps) {
    if (!clocks_.complete(s)) (void)clocks_.synchronize(s);
  }
}

void device_allocator::finish_all() {
  auto const all = memories();
  for (stream_memory* m : all) finish(*m);
  for (stream_memory* m : all) {
    section const hold(*m);
    settle(*m);
  }
  for (stream_memory* m : all) finish(*m);  // what was settled is free since now
}

}  // namespace weir::memory
