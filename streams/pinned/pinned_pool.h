// The state of the pinned pool: its address map, pending blocks, and growth.
// Threads: any; one lock over the map of addresses, never held across a driver call that may block.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>

#include "runtime/base/idle_watch.h"
#include "runtime/base/os.h"
#include "runtime/base/os_memory.h"
#include "runtime/base/room.h"
#include "streams/pinned/near_nodes.h"
#include "streams/pinned/pages.h"
#include "streams/pinned/pinned_counters.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/pinned/range_map.h"
#include "streams/stream/context.h"

namespace weir::streams {

inline driver::address number(void const* p) noexcept {
  return reinterpret_cast<driver::address>(p);
}

struct pinned_memory::state {
  static constexpr int most_polls = 64;  // if the machine moves only in calls, a wait is a number of polls
  using address = driver::address;

  struct pool {
    pinned_space space;
    std::vector<address> pending;  // in the order of freeing
    std::size_t live = 0;          // number of live blocks; pending has room for them, so that a free never allocates
    pinned_counters counters;
    std::size_t mapping = 0;    // bytes being mapped outside the lock; already charged to the limit
    std::size_t returning = 0;  // bytes being returned outside the lock; charged until done
    // another thread adds or returns pages: the available room is about to change
    bool in_motion() const noexcept { return mapping + returning > 0; }
    std::size_t unfenced = 0;               // bytes freed with marks since the last fence
    std::deque<pinned_use> uses{};          // all uses ever made
    std::vector<pinned_use*> spare_uses{};  // uses without a block; has room for all of them
  };

  explicit state(runtime::impl& r)
      : owner(r), clocks(r.part<clock::clocks>()), watch(std::chrono::nanoseconds(r.options().pinned_idle).count()) {}

  weir::runtime::impl& owner;
  clock::clocks& clocks;
  base::guarded<pool> in;
  base::idle_watch watch;
  near_nodes nodes;
  base::atomic<address> lowest{std::numeric_limits<address>::max()};  // bounds of all segments ever
  base::atomic<address> highest{0};

  bool outside(void const* p) const noexcept {
    if (base::order_is_chosen()) [[unlikely]]
      return highest.load(base::memory_order_relaxed) == 0;
    return number(p) < lowest.load(base::memory_order_relaxed) || number(p) >= highest.load(base::memory_order_relaxed);
  }

  int node(int device) noexcept { return nodes.of(owner.machine(), device); }

  void* hand_out(pool& p, int near, std::size_t bytes, std::size_t rounded, std::size_t alignment) {
    base::make_room(p.pending, p.pending.size() + p.live + 1);  // so that a free never allocates
    auto const got = p.space.take(rounded, alignment, near);
    if (got == p.space.end())
      return nullptr;
    ++p.live;
    got->second.requested = bytes;
    p.counters.hand_out(bytes, rounded);
    return reinterpret_cast<void*>(got->first);
  }

  void reclaim(pool& p, pinned_space::place freed) {
    p.counters.reclaim(freed->second.requested, freed->second.bytes);
    auto const free = p.space.give(freed);
    if (watch.after() && p.space.is_whole(free))
      p.space.note_idle(free, base::now_ns());
  }

  // The block's use by that stream, made at the first call. Copying threads write it without the lock,
  // perhaps after another thread has freed the block: that must be harmless.
  static pinned_use* use_of(pool& p, pinned_space::range& one, std::uint64_t stream) {  // Throws: bad_alloc
    for (auto* const use : one.last)
      if (use->stream.load(base::memory_order_relaxed) == stream)
        return use;
    forget_ended(p, one);
    one.last.reserve(one.last.size() + 1);  // nothing throws once the use is taken
    reserve_stamps(one);
    if (p.spare_uses.empty()) {
      base::make_room(p.spare_uses, p.uses.size() + 1);
      p.spare_uses.push_back(&p.uses.emplace_back());
    }
    one.last.push_back(p.spare_uses.back());
    p.spare_uses.pop_back();
    one.last.back()->stream.store(stream, base::memory_order_relaxed);
    return one.last.back();
  }
  // Drops completed uses of ended streams, which are no longer written. Requires: the block is live
  static void forget_ended(pool& p, pinned_space::range& one) noexcept {
    auto const is_over = [](std::uint64_t stream) {
      auto const* const user = clock::find(stream);
      return !user || user->is_over();
    };
    // At 4, 8, 16, ... entries: all looks together then cost a few steps for each entry.
    auto const is_due = [](std::size_t n) { return n >= 4 && std::has_single_bit(n); };
    if (is_due(one.users.size()))
      memory::forget_ended(one.users);
    if (is_due(one.stamps.size()))
      drop_if(one.stamps, [&](clock::stamp s) { return is_over(s.stream); });
    if (!is_due(one.last.size()))
      return;
    drop_if(one.last, [&](pinned_use* use) {
      if (!is_over(use->stream.load()))
        return false;
      use->stream.store(0), use->n.store(0);
      p.spare_uses.push_back(use);  // has room for all
      return true;
    });
  }
  // Reserves room for the stamps at the free, and one more.
  static void reserve_stamps(pinned_space::range& one) {
    one.stamps.reserve(one.stamps.size() + one.users.size() + one.last.size() + 1);
  }
  // A late write may leave another stream's number here: the stamp is cut to what its stream has reached.
  static clock::stamp stamp_of(pinned_use const& use) noexcept {
    clock::stamp const s{use.stream.load(), use.n.load()};
    auto const* const user = clock::find(s.stream);
    return user ? clock::stamp{s.stream, std::min(s.n, user->now().n)} : s;
  }
  // Moves the last uses to the stamps, which have room. Requires: no cache can still return the block
  static void gather(pool& p, pinned_space::range& one) noexcept {
    for (auto* const use : one.last) {
      if (auto const s = stamp_of(*use); s.n)  // 0: looked up, and not used since
        join(one.stamps, s);
      use->stream.store(0);
      use->n.store(0);
      p.spare_uses.push_back(use);
    }
    one.last.clear();
  }

  // Frees blocks whose uses are complete, and quarantines those that a lost stream used.
  // Returns: the oldest pending stamp of each stream, as far as memory allows.
  pinned_space::few<clock::stamp> reclaim_known(pool& p, pinned_space::few<std::uint64_t> const& lost) noexcept;
  // Frees newly completed blocks: one driver query per incomplete stream. Requires: no lock is held: a query
  // may create an event, which may wait for the devices.
  void collect() noexcept;
  // Host memory left to others if there is no pinned_limit: a host without free memory kills processes.
  static std::size_t left_to_others(os::host_memory const& host) noexcept {
    return std::min(host.total / 8, std::size_t{8} << 30);
  }
  // Most bytes to reserve: the option, or what the host can spare, where incoming pages may not be touched
  // yet.
  std::size_t most_reserved(pool const& p) const noexcept {
    if (std::size_t const limit = owner.options().pinned_limit)
      return limit;
    auto const host = os::memory_available();
    if (!host)
      return std::numeric_limits<std::size_t>::max();
    std::size_t const kept = left_to_others(*host);
    return p.counters.reserved() + std::max(p.mapping, host->available - std::min(host->available, kept));
  }
  struct grown {
    driver::status is{};
    void* block = nullptr;
    bool in_motion = false;  // refused while another thread adds or returns pages
  };
  // Adds pages, or takes a block that came free meanwhile. Ensures: the limit refuses at one point in time.
  grown grow(int near, std::size_t rounded, std::size_t alignment, std::size_t bytes);
  // Returns memory unused since then. Blocks: as return_pages
  std::size_t trim(std::int64_t unused_since = std::numeric_limits<std::int64_t>::max());
  // How long a caller waits: in time, or in polls if the machine moves only in calls.
  struct patience {
    std::int64_t since;  // ns; 0: in polls
    int polls = 0;
    bool left() const noexcept;
  };
  // Until a range is found, nothing is pending or in motion, the pages in motion have come or gone, or time is up.
  void* wait_for_room(int near, std::size_t bytes, std::size_t rounded, std::size_t alignment, patience&,
                      bool in_motion);
  bool more_may_come() const {
    auto const p = in.lock();
    return p->in_motion() || !p->pending.empty();
  }
  // Returns idle pages from time to time, except when this thread would then wait for other ranks.
  void decay();
  // Returning pages waits for all work of all devices; a collective in it may wait for a rank of this thread.
  // True: all collectives so far are done. It looks again so many times, or for a second; repeats 0: once.
  bool may_give_back(int repeats = most_polls);
  // New pages, and if the limit or the system refuses them, what idle pages and copies under way give.
  // Null: no room. Throws: driver_error
  void* grow_or_recover(int near, std::size_t bytes, std::size_t rounded, std::size_t alignment, attempt&,
                        source_location);
  memory_report why_no_room(std::size_t bytes, std::size_t rounded, attempt const&);
};

}  // namespace weir::streams
