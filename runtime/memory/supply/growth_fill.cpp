// Handles for a window: made while the bound allows it, moved from where they lie free,
// made all the same when none does.
// Threads: any. A stream's lock is held to choose a handle and to note that it is gone,
// never over a driver call.
//
// Invariant: reserved <= max((1 + epsilon) x most live + c, what is covered). A handle is covered while it
// holds a byte that is live, pending or not known to be complete, or the rest of a slab: one is made past the
// first term only when no handle was found that is wholly free and complete. Among more than 16 streams live
// counts what thread caches keep. Of threads at work at once each may find none just before another frees
// one: what they ask for then may come on top of what is covered. c is a page, and one for each further
// stream, of at most 15, that would live on what others leave (due_its_own).
#include <algorithm>
#include <bit>

#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {
namespace {
constexpr std::size_t fetched_ahead = 8, fetched_lines = 6;  // streams; lines of a tally's sums
}  // namespace

class device_allocator::filling {
 public:
  filling(device_allocator& a, stream_memory& mine, growth& g, std::size_t asked, mapped& out)
      : a_(a),
        mine_(mine),
        for_(g),
        out_(out),
        page_(a.space_.page_bytes()),
        peers_(a.living(mine.readers.load())),
        used_(a.used()),
        sizes_(suitable()) {
    bound_ = a.most_reserved(used_, asked) + page_ + g.spare;
    g.live_before = used_.live;
    charge_within_bound(g.missing_bytes);
  }
  driver::status hole(address at, address end) {
    while (at < end) {
      std::size_t n = 0;
      if (driver::status const s = next(at, end - at, n); !s.ok()) return s;
      at += n;
    }
    return {};
  }

 private:
  void charge_within_bound(std::size_t bytes) {
    fresh_ = a_.counts_.charge_within(bytes, bound_, page_);
    out_.charged += fresh_;
  }
  driver::status next(address at, std::size_t left, std::size_t& n) {
    out_.places.try_emplace(at);  // so that nothing is lost when the host has no memory later
    if (!fresh_) charge_within_bound(left);  // a handle that was too large has gone
    if (fresh_) {
      n = sizes_.next(std::min(left, fresh_));
      fresh_ -= n;
      return make(at, n);
    }
    if (may_move_) {
      driver::status s;
      do {
        if (move(at, left, n, s)) return s;
      } while (a_.settle_what_is_known());  // by what was asked on the way
      may_move_ = false;
      if (bound_ >= enough_to_judge * page_) a_.past_bound_.set(true);
      if (sizes_.most > page_) sizes_ = suitable();
    }
    n = sizes_.next(left);
    if (!charge(n)) return {driver::code::out_of_memory};
    return make(at, n);
  }
  handle_sizes suitable() const {
    if (mine_.readers.load()) return a_.space_.handles_that_stay();
    // Runs live long, and a long one is little of what its size holds: one handle under it, if it may.
    if (for_.run && for_.bytes > page_ && !a_.past_bound_.get()) return {page_, for_.bytes};
    return a_.space_.handles_under(for_.bytes, holdings(), a_.epsilon_);
  }
  address_space::holdings holdings() const {
    return {.reserved = a_.counts_.reserved() + for_.missing_bytes,
            .live = static_cast<std::size_t>(used_.large),
            .blocks = static_cast<std::size_t>(used_.large_blocks),
            .free_pieces = for_.large_beside,
            .past_bound = a_.past_bound_.get()};
  }
  bool charge(std::size_t n) {
    if (!a_.counts_.charge(n)) return false;
    out_.charged += n;
    return true;
  }
  driver::status make(address at, std::size_t n) {
    auto const h = a_.machine_.create(a_.device_, n);
    return h.ok() ? place({h.value, at, n}) : h.is;
  }
  driver::status place(handle h) {  // one that is mapped nowhere
    if (auto const s = a_.machine_.map(h.at, h.bytes, h.physical); !s.ok()) {
      a_.release(h.physical, h.bytes, out_);
      return s;
    }
    out_.handles.push_back(h);
    std::uint64_t const readers = a_.own_bit() | peers_;
    auto const s =
        peers_ ? a_.machine_.grant_all(h.at, h.bytes, readers) : a_.machine_.grant(h.at, h.bytes, a_.device_);
    if (s.ok()) out_.handles.back().readers = readers;
    return s.what == driver::code::not_supported && peers_ ? place_without_those_refused(out_.handles.back()) : s;
  }
  driver::status place_without_those_refused(handle& h) {  // a link may have gone
    if (auto const s = a_.machine_.grant(h.at, h.bytes, a_.device_); !s.ok()) return s;
    h.readers = a_.own_bit();
    for (std::uint64_t left = peers_; left; left &= left - 1) {
      std::uint64_t const one = left & (~left + 1);
      auto const s = a_.machine_.grant(h.at, h.bytes, std::countr_zero(one));
      if (s.ok()) h.readers |= one;
      else if (s.what == driver::code::not_supported) a_.forget_readers(one), peers_ &= ~one;
      else return h.readers = 0, s;
    }
    return {};
  }

  // false: no handle is wholly free and complete.
  bool move(address to, std::size_t left, std::size_t& n, driver::status& s) {
    stream_memory* from = nullptr;
    released victim = choose(left, from);
    if (!victim.place) return false;
    handle const h = victim.handles.front();
    bool const too_large = h.bytes > left || (h.bytes > sizes_.moved &&
                                              a_.clocks_.complete({from->home.load()->id(), victim.place->freed}));
    if (too_large || mine_.readers.load()) {  // or not open to peers: it goes, and as much as is needed is made
      if (!a_.release(*from, victim)) return false;
      n = sizes_.next(std::min(left, h.bytes));
      s = charge(n) ? make(to, n) : driver::status{driver::code::out_of_memory};
      return true;
    }
    n = h.bytes;
    s = a_.move_home(*from, victim, to, out_);
    return true;
  }

  // One to take: the largest that fits, of whichever stream, among what is complete, else among what is
  // ordered before the stream's next work; else the smallest of all, which goes.
  enum class may : std::uint8_t { fit_complete, fit_ordered, go };
  released choose(std::size_t left, stream_memory*& from) {
    for (may const how : {may::fit_complete, may::fit_ordered, may::go}) {
      if (how != may::go && mine_.readers.load()) continue;  // nothing moves to where peers read
      released found;
      auto const look = [&](stream_memory& m) {
        found = choose_of(m, left, how);
        from = &m;
        return found.place != nullptr;
      };
      // others' first: what lies idle there serves nobody
      a_.streams_.some(lenders::whole, 0, [&](stream_memory& m) { return &m != &mine_ && look(m); });
      if (found.place || look(mine_)) return found;
    }
    return {};
  }
  released choose_of(stream_memory& m, std::size_t left, may how) {
    std::size_t const enough = std::bit_floor(std::min(left, sizes_.most) / page_) * page_;
    clock::timeline& home = *mine_.home.load();
    for (bool asked = false;; asked = true) {
      clock::stamp oldest;  // of what may not go yet
      {
        section const hold(m);
        if (a_.streams_.many()) m.lock.disown();
        oldest.stream = m.home.load()->id();
        auto found = m.pieces.reserve_handle(
            left, enough,
            [&](handle const& h) {
              return (how == may::go || h.bytes <= left) && h.physical != driver::memory_handle::none &&
                     !a_.open_bytes(h);
            },
            [&](std::uint64_t freed) {
              return how == may::fit_ordered ? a_.passed(home, {oldest.stream, freed})
                                             : a_.clocks_.complete({oldest.stream, freed});
            });
        if (found.from.place) return std::move(found.from);
        oldest.n = found.waits_for;
      }
      if (asked || how == may::fit_ordered || !oldest.n || !patient_ || !complete_soon(oldest)) return {};
    }
  }
  // A fence of an idle stream takes some microseconds, a move thirty: asking again is worth it, once.
  bool complete_soon(clock::stamp s) {
    for (int tries = 0; tries < 32; ++tries) {
      auto const done = a_.clocks_.poll(s);
      if (!done.ok() || done.value) return done.ok();
    }
    patient_ = false;
    return false;
  }

  device_allocator& a_;
  stream_memory& mine_;
  growth const& for_;
  mapped& out_;
  std::size_t const page_;
  std::uint64_t peers_;  // that what is made is open to
  in_use const used_;
  handle_sizes sizes_;
  std::size_t bound_ = 0;  // bytes
  std::size_t fresh_ = 0;  // bytes charged for handles yet to be made
  bool may_move_ = !a_.deterministic_;  // which handles are complete is nothing that a program says
  bool patient_ = true;
};

driver::status device_allocator::fill(stream_memory& mine, growth& g, std::size_t asked, mapped& out) try {
  if (driver::status const s = lay_ghosts(mine, g, out); !s.ok()) return s;
  out.handles.reserve(g.missing_bytes / space_.page_bytes() + 1);  // nothing below is lost for want of host memory
  filling f(*this, mine, g, asked, out);
  for (address_range const& hole : g.missing) {
    if (driver::status const s = f.hole(hole.at, hole.at + hole.bytes); !s.ok()) return s;
  }
  return {};
} catch (std::bad_alloc const&) {  // what was made so far is in `out`: taken back as after any refusal
  return {driver::code::out_of_memory};
}

// All streams' tallies, in one walk without a lock. What thread caches hold is counted as taken there; only
// among few streams are the caches asked, for that takes each memory's lock.
device_allocator::in_use device_allocator::used() const {
  in_use n;
  std::size_t const all = streams_.size();
  bool const few = all <= lenders::few;
  for (std::size_t i = 0; i < all; ++i) {
    if (i + fetched_ahead < all) {
      auto const* const next = reinterpret_cast<char const*>(&streams_[i + fetched_ahead].counts);
      for (std::size_t line = 0; line < fetched_lines; ++line) __builtin_prefetch(next + line * 64);
    }
    observe::tally const& t = streams_[i].counts;
    n.live += t.bytes_live();
    n.pending += t.bytes_pending();
    n.large += t.bytes_live(observe::size_pool::large);
    n.large_blocks += t.blocks_live(observe::size_pool::large);
    if (few) n.most_of_one = std::max(n.most_of_one, t.most_live());
  }
  if (!few) return n;
  auto const caches = lent();
  n.live = std::max<std::int64_t>(0, n.live - caches.held_bytes),
  n.most_of_one = std::max<std::int64_t>(0, n.most_of_one - caches.held_bytes);
  n.pending += caches.waiting_bytes;
  return n;
}

// The first term of the bound. A device of one stream knows its peak;
// of several, what was live whenever one needed more.
std::size_t device_allocator::most_reserved(in_use const& n, std::size_t asked) noexcept {
  most_live_.raise(static_cast<std::size_t>(std::max(n.most_of_one, n.live)));
  std::size_t const live = std::max(most_live_.load(), static_cast<std::size_t>(n.live + n.pending) + asked);
  return live + static_cast<std::size_t>(static_cast<double>(live) * epsilon_);
}

void device_allocator::release(driver::memory_handle h, std::size_t bytes, mapped& out) {
  if (machine_.release(h).ok()) return;
  out.orphaned += bytes;
  try {
    orphans_.lock()->push_back({h, 0, bytes});
  } catch (...) {}  // neither the driver nor the host has room for it: it goes with the process
}

// Takes back what fill made. Ensures: `handles` is what is still mapped,
// because the driver refused even that.
void device_allocator::undo(mapped& out) {
  std::erase_if(out.handles, [&](handle const& h) {
    if (!machine_.unmap(h.at, h.bytes).ok()) return false;
    release(h.physical, h.bytes, out);
    return true;
  });
}

}  // namespace weir::memory
