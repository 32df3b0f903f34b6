// What stands behind the pinned pool: its map of addresses, what is pending, and the ways to more room.
// Threads: any; one lock over the map of addresses, never held across a driver call that may block.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>

#include "runtime/base/os.h"
#include "runtime/base/os_memory.h"
#include "runtime/base/room.h"
#include "streams/pinned/idle.h"
#include "streams/pinned/pages.h"
#include "streams/pinned/pinned_counters.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/pinned/range_map.h"
#include "streams/stream/context.h"

namespace weir::streams {

inline driver::address number(void const* p) noexcept { return reinterpret_cast<driver::address>(p); }

struct pinned_memory::state {
  static constexpr int most_polls = 64;  // where nothing moves by itself, waiting is asking
  using address = driver::address;

  struct pool {
    pinned_space space;
    std::vector<address> pending; // in the order of freeing
    std::size_t live = 0;         // blocks. pending has room for them, so that freeing never allocates
    pinned_tally tally;
    std::size_t coming = 0;       // bytes being mapped outside the lock, already charged to the limit
    std::size_t going = 0;        // bytes being given back outside the lock, charged to it until they are
    // some thread's pages: what there is room for is about to change
    bool in_motion() const noexcept { return coming + going > 0; }
    std::size_t unfenced = 0;     // bytes freed with marks since the last fence
    std::deque<pinned_use> uses{};             // ever made
    std::vector<pinned_use*> spare_uses{};     // that no block has; with room for all of them
  };

  explicit state(runtime::impl& r)
      : owner(r), clocks(r.part<clock::clocks>()), watch(std::chrono::nanoseconds(r.options().pinned_idle).count()) {}

  weir::runtime::impl& owner;
  clock::clocks& clocks;
  base::guarded<pool> in;
  idle_watch watch;
  near_nodes nodes;
  base::atomic<address> lowest{std::numeric_limits<address>::max()};  // no segment ever lay outside these
  base::atomic<address> highest{0};

  bool outside(void const* p) const noexcept {
    if (base::order_is_chosen()) [[unlikely]] return highest.load(base::memory_order_relaxed) == 0;
    return number(p) < lowest.load(base::memory_order_relaxed) || number(p) >= highest.load(base::memory_order_relaxed);
  }

  int node(int device) noexcept { return nodes.of(owner.machine(), device); }

  void* hand_out(pool& p, int near, std::size_t bytes, std::size_t rounded, std::size_t alignment) {
    base::make_room(p.pending, p.pending.size() + p.live + 1);
    auto const got = p.space.take(rounded, alignment, near);
    if (got == p.space.end()) return nullptr;
    ++p.live;
    got->second.requested = bytes;
    p.tally.hand_out(bytes, rounded);
    return reinterpret_cast<void*>(got->first);
  }

  void settle(pool& p, pinned_space::place freed) {
    p.tally.settle(freed->second.requested, freed->second.bytes);
    auto const free = p.space.give(freed);
    if (watch.after() && p.space.is_whole(free)) p.space.note_idle(free, base::now_ns());
  }

  // It may be written too late, when a thread frees a block that another one copies: that must do no harm.
  static pinned_use* use_of(pool& p, pinned_space::range& one, std::uint64_t stream) {  // Throws: bad_alloc
    for (auto* const use : one.last) {
      if (use->stream.load(base::memory_order_relaxed) == stream) return use;
    }
    forget_ended(p, one);
    one.last.reserve(one.last.size() + 1);
    make_room(one);
    if (p.spare_uses.empty()) {
      base::make_room(p.spare_uses, p.uses.size() + 1);
      p.spare_uses.push_back(&p.uses.emplace_back());
    }
    one.last.push_back(p.spare_uses.back());
    p.spare_uses.pop_back();
    one.last.back()->stream.store(stream, base::memory_order_relaxed);
    return one.last.back();
  }
  // What ended streams did with it, and has completed, makes room for others'.
  // Their uses are written no more. Requires: it is live
  static void forget_ended(pool& p, pinned_space::range& one) noexcept {
    auto const is_over = [](std::uint64_t stream) {
      auto const* const line = clock::find(stream);
      return !line || line->is_over();
    };
    auto const is_due = [](std::size_t n) { return n >= 4 && std::has_single_bit(n); };
    if (is_due(one.users.size())) drop_if(one.users, [](clock::timeline const* line) { return line->is_over(); });
    if (is_due(one.stamps.size())) drop_if(one.stamps, [&](clock::stamp s) { return is_over(s.stream); });
    if (!is_due(one.last.size())) return;
    drop_if(one.last, [&](pinned_use* use) {
      if (!is_over(use->stream.load())) return false;
      use->stream.store(0), use->n.store(0);
      p.spare_uses.push_back(use);  // has room for all of them
      return true;
    });
  }
  // For all the stamps that freeing it will need, and one more.
  static void make_room(pinned_space::range& one) {
    one.stamps.reserve(one.stamps.size() + one.users.size() + one.last.size() + 1);
  }
  static clock::stamp stamp_of(pinned_use const& use) noexcept {
    clock::stamp const s{use.stream.load(), use.n.load()};
    auto const* const line = clock::find(s.stream);
    return line ? clock::stamp{s.stream, std::min(s.n, line->now().n)} : s;
  }
  // The block's last uses join the others; there is room for them. Requires:
  // its memory may not be remembered any more
  static void gather(pool& p, pinned_space::range& one) noexcept {
    for (auto* const use : one.last) {
      if (auto const s = stamp_of(*use); s.n) join(one.stamps, s);
      use->stream.store(0);
      use->n.store(0);
      p.spare_uses.push_back(use);
    }
    one.last.clear();
  }

  // Frees what is known to be complete; what a lost stream used stays away for good.
  // Returns: the oldest stamp of each stream that something still waits for;
  // of as many as there is memory to name.
  pinned_space::few<clock::stamp> settle_known(pool& p, pinned_space::few<std::uint64_t> const& lost) noexcept;
  // Frees what has become complete: one question to the driver for each stream that is not there yet.
  // Requires: no lock of ours held, for the fence that a question may need is an event,
  // and making one may wait for the devices.
  void collect() noexcept;
  // What of the host's memory is left to others where nobody said how much may be pinned:
  // a host without any ends processes.
  static std::size_t left_to_others(os::host_memory const& host) noexcept {
    return std::min(host.total / 8, std::size_t{8} << 30);
  }
  // Bytes that may be reserved in all: the option, or what the host has to spare.
  // Pages that are coming may not be touched yet.
  std::size_t most_reserved(pool const& p) const noexcept {
    if (std::size_t const limit = owner.options().pinned_limit) return limit;
    auto const host = os::memory_available();
    if (!host) return std::numeric_limits<std::size_t>::max();
    std::size_t const kept = left_to_others(*host);
    return p.tally.reserved() + std::max(p.coming, host->available - std::min(host->available, kept));
  }
  struct growth {
    driver::status is{};
    void* block = nullptr;
    bool others = false;  // refused while some thread's pages were in motion
  };
  // New pages, or what came free since somebody looked. Ensures:
  // out_of_memory of the limit is true of one moment.
  growth grow(int near, std::size_t rounded, std::size_t alignment, std::size_t bytes);
  // What nobody has used since then. Blocks: as return_pages
  std::size_t trim(std::int64_t unused_since = std::numeric_limits<std::int64_t>::max());
  // How long somebody waits: by the clock, or where nothing moves by itself in polls.
  struct patience {
    std::int64_t since;  // ns; 0: in polls
    int polls = 0;
    bool left() const noexcept;
  };
  // Until a range is found, nothing is pending or in motion any more, what was in motion (`others`)
  // has arrived, or the time is up.
  void* wait_for_room(int near, std::size_t bytes, std::size_t rounded, std::size_t alignment, patience&, bool others);
  bool more_may_come() const { auto const p = in.lock(); return p->in_motion() || !p->pending.empty(); }
  // Idle pages go back now and then, and not while that would make this thread wait for other ranks.
  void decay();
  // To give pages back waits for the work of all devices.
  // When one of them waits for a rank, that may be this very thread's.
  bool may_give_back(int most_looks = most_polls);
  [[noreturn]] void refuse(std::size_t bytes, std::size_t rounded, std::vector<recovery_step> ladder,
                           source_location at);
};

}  // namespace weir::streams
