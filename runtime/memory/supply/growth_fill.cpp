// Handles for a window: made while the bound and the driver allow it, moved from where they lie free,
// made all the same when none does.
// Threads: any. A stream's lock is held to choose a handle and to note that it is gone,
// never over a driver call.
//
// Invariant: reserved <= max((1 + epsilon) x most live + width + c, what is covered). A handle is covered while it
// holds a byte that is live, pending or not known to be complete, or the rest of a slab: one is made past the
// first term only when no handle was found that is wholly free and complete. Among more than 16 streams live
// counts what thread caches keep. Of threads at work at once each may find none just before another frees
// one: what they ask for then may come on top of what is covered. c is a page, and one for each further
// stream, of at most 15, that would live on what others leave (should_grow_instead).
#include <algorithm>
#include <bit>

#include "runtime/memory/supply/growth.h"

namespace weir::memory {
namespace {
// Times the bytes of a graph's pool. A stream whose captures into one pool never end takes no more addresses.
constexpr std::size_t most_left_behind = 4;
}  // namespace

class growth::filling {
 public:
  filling(growth& a, stream_heap& mine, growth_plan& g, std::size_t asked, physical_memory::batch& out)
      : a_(a),
        mine_(mine),
        pool_(mine.pool()),
        for_(g),
        out_(out),
        page_(a.of_.space.page_bytes()),
        readers_(a.peers_.living(mine.readers())),
        used_(a.bound_.now()),
        sizes_(suitable()) {
    bound_ = a.bound_.most(used_, asked) + page_ + g.spare;
    g.live_before = used_.live;
    if (g.by_openings)
      ask_for_newest();
    // A registered pool's handle is charged as it is made. A graph's pool is charged after its free handles have moved.
    if (!rules_.pages_stay)
      charge_within_bound(g.missing_bytes);
  }
  ~filling() { a_.bound_.learn(used_, pool_, moves_); }
  driver::status fill_hole(address at, address end) {
    while (at < end) {
      std::size_t n = 0;
      if (driver::status const s = next(at, end - at, n); !s.ok())
        return s;
      at += n;
    }
    return {};
  }

 private:
  void charge_within_bound(std::size_t bytes) {
    std::size_t const granted = pool_.charge_within(a_.of_.may_take(bytes), page_);
    fresh_ = a_.of_.counts.charge_within(granted, bound_, page_);
    pool_.refund(granted - fresh_);
    out_.charged += fresh_, out_.of_pool += fresh_;
  }
  // Puts memory at `at`: n bytes, at most `left`. The cheapest way first; one that has failed is over for this window.
  // Each way returns true if it is the last to try: it has put n bytes there, or `s` says why not.
  driver::status next(address at, std::size_t left, std::size_t& n) {
    out_.places.try_emplace(at);  // so that nothing is lost when the host has no memory later
    driver::status s;
    if (may_move_inside_ && moved_inside(at, left, n, s))
      return s;

    // A handle that was too large for its hole may have gone meanwhile: then the bound has room again.
    if (!fresh_ && !device_is_full_ && !rules_.one_handle)
      charge_within_bound(left);
    if (fresh_ && made_within_bound(at, left, n, s))
      return s;

    if (may_move_ && moved(at, left, n, s))
      return s;

    // All that is free was looked at, so that the bound may be passed.
    n = sizes_.next(within_pool(left));
    if (!device_is_full_ && charge(n))
      return make(at, n);
    return moved_in_need(at, left, n);
  }
  // What is free in a graph's pool serves that graph alone, and the bound counts it as live. So it moves before
  // anything is made.
  bool moved_inside(address at, std::size_t left, std::size_t& n, driver::status& s) {
    if (!move(at, left, n, s, whose::own_pool))
      return false;
    if (s.ok() || s.what == driver::code::lost)
      return true;
    may_move_inside_ = false;  // the driver maps no handle twice: new memory may serve
    return false;
  }
  bool made_within_bound(address at, std::size_t left, std::size_t& n, driver::status& s) {
    n = sizes_.next(std::min(left, fresh_));
    fresh_ -= n;
    s = make(at, n);
    if (!device_is_full_)
      return true;
    // The driver has no page: what is charged is not made.
    refund(n + fresh_);
    fresh_ = 0;
    return long_run_;  // one that is longer than it has to be makes nothing move: the caller asks for a short one
  }
  bool moved(address at, std::size_t left, std::size_t& n, driver::status& s) {
    do {
      if (move(at, left, n, s, whose::any)) {
        ++moves_;
        return true;
      }
      // The search asked the driver. By its answers, pending blocks may be free now.
    } while (a_.heaps_.reclaim_known());
    may_move_ = false;
    return false;
  }
  // Memory is short. A handle that stayed for the sake of addresses moves rather than that the thread waits.
  driver::status moved_in_need(address at, std::size_t left, std::size_t& n) {
    driver::status s{driver::code::out_of_memory};
    if (!passed_over_)
      return s;
    moves_full_handles_ = true;
    bool const found = move(at, left, n, s, whose::any);
    if (!found && rules_.pages_stay)
      (void)move(at, left, n, s, whose::own_pool);
    return s;
  }
  handle_sizes suitable() const {
    if (rules_.one_handle)
      return {.page = page_, .most = for_.bytes, .last = for_.bytes};
    if (mine_.readers())
      return a_.of_.space.handles_that_stay();
    // A long run lives long, and is a small part of the memory of its slots' size: its handles may be as large as it.
    if (long_run_ && for_.bytes > page_)
      return {.page = page_, .most = for_.bytes};
    std::size_t const reserved = a_.of_.counts.reserved() + for_.missing_bytes;
    return a_.of_.space.handles_under(for_.bytes, reserved, capacity(reserved), a_.of_.epsilon);
  }
  // What the device, or a limit, lets weir reserve.
  std::size_t capacity(std::size_t reserved) const {
    std::size_t all = a_.of_.space.info().total_memory;
    for (std::size_t const limit : {a_.of_.counts.limit(), pool_.now().limit}) {
      if (limit)
        all = std::min(all, limit);
    }
    // Where the device is nearly full, others hold the rest of it.
    if (a_.of_.is_nearly_full())
      all = std::min(all, reserved);
    return all;
  }
  // As much of `bytes` as the pool's limit leaves, in pages: at least one, which charge() then refuses.
  std::size_t within_pool(std::size_t bytes) const {
    return std::min(bytes, std::max(page_, pool_.room() / page_ * page_));
  }
  bool charge(std::size_t n) {
    if (!a_.memory_.charge(pool_, n))
      return false;
    out_.charged += n, out_.of_pool += n;
    return true;
  }
  void refund(std::size_t n) {  // of what is charged, and was not made
    a_.memory_.refund(pool_, n);
    out_.charged -= n, out_.of_pool -= n;
  }
  // n: charged. If the driver has less, a page is made, and the rest is refunded.
  driver::status make(address at, std::size_t& n) {
    auto h =
        rules_.one_handle ? a_.of_.machine.create_shared(a_.of_.device, n) : a_.of_.machine.create(a_.of_.device, n);
    bool const has_less = h.is.what == driver::code::out_of_memory;
    if (has_less)
      a_.of_.note_full();
    if (has_less && n > page_ && !rules_.one_handle) {
      refund(n - page_);
      n = page_, sizes_ = {.page = page_, .most = page_};
      h = a_.of_.machine.create(a_.of_.device, n);
    }
    if (h.ok())
      return place({h.value, at, n});
    device_is_full_ = h.is.what == driver::code::out_of_memory;
    return h.is;
  }
  driver::status place(handle h) {  // one that is mapped nowhere
    if (auto const s = a_.of_.machine.map(h.at, h.bytes, h.physical); !s.ok()) {
      a_.memory_.release(h.physical, h.bytes, out_);
      return s;
    }
    out_.handles.push_back(h);
    std::uint64_t const readers = a_.of_.own_bit() | readers_;
    auto const s = readers_ ? a_.of_.machine.grant_all(h.at, h.bytes, readers)
                            : a_.of_.machine.grant(h.at, h.bytes, a_.of_.device);
    if (s.ok())
      out_.handles.back().readers = readers;
    if (s.what == driver::code::not_supported && readers_)
      return place_without_those_refused(out_.handles.back());
    return s;
  }
  // Grants it to one reader after the other. One that the driver refuses is removed: a link may have gone.
  driver::status place_without_those_refused(handle& h) {
    if (auto const s = a_.of_.machine.grant(h.at, h.bytes, a_.of_.device); !s.ok())
      return s;
    h.readers = a_.of_.own_bit();
    for (std::uint64_t left = readers_; left; left &= left - 1) {
      std::uint64_t const one = left & (~left + 1);
      auto const s = a_.of_.machine.grant(h.at, h.bytes, std::countr_zero(one));
      if (s.ok()) {
        h.readers |= one;
      } else if (s.what == driver::code::not_supported) {
        a_.peers_.forget(one);
        readers_ &= ~one;
      } else {
        // Open to some of its readers only: it counts as unusable, should the driver not unmap it either.
        h.readers = 0;
        return s;
      }
    }
    return {};
  }

  enum class whose : std::uint8_t { any, own_pool };  // handles of a graph move in its pool alone
  // False: no handle is wholly free and complete, or the driver takes none back.
  bool move(address to, std::size_t left, std::size_t& n, driver::status& s, whose handles) {
    stream_heap* from = nullptr;
    released victim = choose(left, from, handles);
    if (!victim.place)
      return false;
    handle const h = victim.handles.front();
    memory_pool& its = from->pool();
    bool const from_other_pool = &its != &pool_;
    // None comes that is larger than the hole or that the pool's limit forbids, and none to where peers read.
    bool comes = h.bytes <= left && !mine_.readers();
    if (comes && from_other_pool)
      comes = pool_.charge(h.bytes);
    // It goes to the driver, and as much as is needed is made.
    if (!comes) {
      if (!a_.return_.one(*from, victim))
        return false;
      n = sizes_.next(within_pool(std::min(left, h.bytes)));
      s = charge(n) ? make(to, n) : driver::status{driver::code::out_of_memory};
      return true;
    }
    n = h.bytes;
    s = a_.mover_.remap(*from, victim, to, out_);
    if (!from_other_pool)
      return true;
    if (!s.ok()) {
      pool_.refund(n);
      return true;
    }
    // It has changed pools, and this one was charged above.
    its.refund(n);
    out_.of_pool += n, out_.from_other_pools += n;
    return true;
  }

  // One to take. Each way is tried on all heaps before the next. First: it fits, and is complete. Then: it fits,
  // and is ordered before the stream's next work. Last: it is complete, of any size, and goes to the driver.
  enum class may : std::uint8_t { fit_complete, fit_ordered, go };
  released choose(std::size_t left, stream_heap*& from, whose handles) {
    bool const pool_is_full = pool_.room() < page_;  // a handle of another pool would pass the limit
    for (may const how : {may::fit_complete, may::fit_ordered, may::go}) {
      if (how == may::go && handles == whose::own_pool)
        break;  // a launch may use it where it is
      if (how != may::go && mine_.readers())
        continue;  // nothing moves to where peers read
      released found;
      // Sets `found` and `from`.
      auto const take_from = [&](stream_heap& m) {
        memory_pool const& its = m.pool();
        bool const of_this_pool = &its == &pool_;
        if (handles == whose::own_pool && !of_this_pool)
          return false;
        if (handles == whose::any && (its.rules().pages_stay || (pool_is_full && !of_this_pool)))
          return false;
        found = choose_of(m, left, how);
        from = &m;
        return found.place != nullptr;
      };
      // With openings the heap's own come first: each leaves an alias here, and returns to it without a driver call.
      if (for_.by_openings && take_from(mine_))
        return found;
      // Else those of other heaps, where a free handle is of no use to this one.
      a_.heaps_.index.some(heap_index::whole_handle, 0, [&](stream_heap& m) { return &m != &mine_ && take_from(m); });
      if (!found.place && !for_.by_openings)
        (void)take_from(mine_);
      if (found.place)
        return found;
    }
    return {};
  }
  // Looks twice if the first look has found a handle whose work the driver then says is complete.
  released choose_of(stream_heap& m, std::size_t left, may how) {
    std::size_t const enough = std::bit_floor(std::min(left, sizes_.most) / page_) * page_;
    clock::stream_clock& home = mine_.home();
    auto const suits = [&](handle const& h) {
      // While work on a handle goes on, none of its aliases can go, and a move leaves one more. One with many
      // moves only where memory is short.
      bool const spares_addresses = how == may::fit_ordered && !moves_full_handles_;
      if (spares_addresses && alias_table::is_full(static_cast<aliased_handle const&>(h))) {
        passed_over_ = true;
        return false;
      }
      return (how == may::go || h.bytes <= left) && h.physical != driver::memory_handle::none && !a_.of_.open_bytes(h);
    };
    for (bool asked = false;; asked = true) {
      clock::stamp oldest;  // of what may not go yet
      {
        session in(m);
        if (m.rules().pages_stay && &m.pool() != &pool_)
          return {};  // a graph has taken it over meanwhile
        if (a_.heaps_.index.many())
          in.end_ownership();  // else the index lists the heap by all its mapped bytes, for every search
        // Moves in a graph's pool have taken enough addresses.
        if (in.left_behind() && in.left_behind() > most_left_behind * m.pool().now().charged)
          return {};
        oldest.stream = m.home().id();
        auto found = in.reserve_handle(left, enough, suits, [&](std::uint64_t freed) {
          return how == may::fit_ordered ? a_.of_.ordered_or_complete(home, {oldest.stream, freed})
                                         : a_.of_.clocks.complete({oldest.stream, freed});
        });
        if (found.from.place)
          return std::move(found.from);
        oldest.n = found.waits_for;
      }
      // What is ordered needs no answer of the driver. A capture completes with its end.
      if (asked || how == may::fit_ordered || m.rules().pages_stay)
        return {};
      if (!oldest.n || !patient_ || !complete_soon(oldest))
        return {};
    }
  }
  // Only what is known to be complete may go, and what is free at high addresses has the newest stamp.
  void ask_for_newest() {
    clock::stamp newest;
    {
      session const in(mine_);
      newest = {mine_.home().id(), in.newest_given()};
    }
    if (newest.n && !a_.of_.clocks.complete(newest))
      (void)a_.of_.clocks.poll(newest);
  }
  // A fence of an idle stream takes some microseconds, a move thirty: asking again is worth it. After one
  // stream for which it was in vain, no other is asked.
  bool complete_soon(clock::stamp s) {
    for (int tries = 0; tries < 32; ++tries) {
      auto const done = a_.of_.clocks.poll(s);
      if (!done.ok())
        return false;
      if (done.value)
        return true;
    }
    patient_ = false;
    return false;
  }

  growth& a_;
  stream_heap& mine_;
  memory_pool& pool_;
  growth_plan const& for_;
  physical_memory::batch& out_;
  std::size_t const page_;
  pool_rules const& rules_ = pool_.rules();
  bool const long_run_ = for_.run && for_.bytes > slabs::usual_run_bytes;
  std::uint64_t readers_;  // that what is made is open to
  reserve_bound::usage const used_;
  handle_sizes sizes_;
  std::size_t bound_ = 0;  // bytes
  std::size_t fresh_ = 0;  // bytes charged for handles yet to be made
  std::size_t moves_ = 0;  // because the bound lets no more be made
  // Which handles are complete is nothing that a program says.
  bool may_move_ = !a_.of_.deterministic && !rules_.one_handle;
  bool may_move_inside_ = may_move_ && rules_.pages_stay && !long_run_;  // handles of a graph's own pool
  bool passed_over_ = false;                                             // a handle, because it is full of aliases
  bool moves_full_handles_ = false;                                      // none is passed over for that
  bool patient_ = true;          // no stream has let complete_soon() ask in vain
  bool device_is_full_ = false;  // the driver has not even a page
};

driver::status growth::fill(stream_heap& mine, growth_plan& g, std::size_t asked, physical_memory::batch& out) try {
  if (driver::status const s = mover_.clear_aliases(mine, g, out); !s.ok())
    return s;
  g.is_clear = true;
  out.handles.reserve(g.missing_bytes / of_.space.page_bytes() + 1);  // nothing below is lost for want of host memory
  filling f(*this, mine, g, asked, out);
  for (address_range const& hole : g.missing) {
    if (driver::status const s = f.fill_hole(hole.at, hole.at + hole.bytes); !s.ok())
      return s;
  }
  return {};
} catch (std::bad_alloc const&) {  // what was made so far is in `out`: taken back as after any refusal
  return {driver::code::out_of_memory};
}

}  // namespace weir::memory
