// An alias is an address range where a handle stays mapped after it has moved. No block uses it. If the range
// is needed while the handle is free, weir switches the handle back without a driver call.
// Threads: any; one lock for a device's aliases, taken last and never held over a driver call.
//
// Invariant: an alias lies inside one unmapped block or one reserved block. Only the call that reserved a block
// may unmap the alias in it or switch its handle back. All work that used the handle at an alias is ordered before
// all work that uses it at its present address.
#pragma once
#include <map>
#include <utility>

#include "runtime/base/sync.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/memory/blocks/region.h"

namespace weir::memory {

struct alias {
  aliased_handle* of = nullptr;  // null: announced by expect()
  alias* next = nullptr;         // the next older one of the same handle
  address at = 0;
  std::size_t bytes = 0;
  clock::stamp last;    // last use here; must be complete before an unmap
  bool granted = true;  // false: the driver refused both access and the unmap
  bool stuck = false;   // the driver refused the unmap; plans avoid it until retry_stuck()

  address end() const noexcept { return at + bytes; }
};

class alias_table {
 public:
  using places = std::map<address, alias>;
  static constexpr int most = 8;  // of one handle, once the work on older ones is complete
  // Of one handle whose work is not complete, so that no alias of it can go. Each takes addresses and a mapping. Then
  // the handle moves only where memory is short.
  static constexpr int most_under_work = 16;
  static bool is_full(aliased_handle const& h) noexcept { return h.alias_count.get() >= most_under_work; }

  // Holds the lock while the result is live.
  base::guarded<places>::access look() const { return all_.lock(); }

  void expect(address at) { all_.lock()->try_emplace(at); }  // Throws: bad_alloc. Requires: leave() or forget() follows
  // The handle stays mapped at `at`, which expect() announced.
  void leave(aliased_handle& h, address at, clock::stamp last, bool granted) noexcept {
    auto const all = all_.lock();
    alias& g = all->find(at)->second;
    g = {&h, nullptr, at, h.bytes, last, granted, false};
    link(g);
  }
  // The handle has moved to `to`, and stays mapped at its old address.
  void leave_for(aliased_handle& h, address to, clock::stamp last) noexcept {
    address const at = h.at;
    {
      auto const all = all_.lock();
      h.at = to;
    }
    // leave() takes the lock again. Until then the old place is only announced, and no handle's.
    leave(h, at, last, true);
  }
  // Exchanges the addresses of the alias and its handle.
  void swap(alias& g, clock::stamp last) noexcept {
    auto const all = all_.lock();
    auto node = all->extract(g.at);
    std::swap(g.at, g.of->at);
    g.last = last;
    node.key() = g.at;
    all->insert(std::move(node));
    // It is the newest of its handle now.
    unlink(g);
    link(g);
  }
  void forget(address at) noexcept {  // unmapped, or never made
    auto const all = all_.lock();
    auto const found = all->find(at);
    if (found->second.of)
      unlink(found->second);
    all->erase(found);
  }
  void keep_stuck(alias& g) noexcept {
    auto const all = all_.lock();
    g.stuck = true;
  }
  void retry_stuck() noexcept {
    auto const all = all_.lock();
    for (auto& [at, g] : *all)
      g.stuck = false;
  }
  // The oldest alias of a handle; bytes 0: the handle has at most `spared`.
  struct place {
    address at = 0;
    std::size_t bytes = 0;
    clock::stamp last;
  };
  place oldest(aliased_handle const& h, int spared) const noexcept {
    auto const all = all_.lock();
    if (h.alias_count.get() <= spared)
      return {};
    alias const* g = h.aliases;
    while (g->next)
      g = g->next;
    return {g->at, g->bytes, g->last};
  }
  // For the end. Ensures: handles still point to the aliases that are gone, so do not query them again.
  places take_all() noexcept { return std::exchange(*all_.lock(), {}); }
  bool is_of(aliased_handle const& h, address at) const noexcept {
    auto const all = all_.lock();
    auto const found = all->find(at);
    return found != all->end() && found->second.of == &h;
  }
  address home(alias const& g) const noexcept {
    auto const all = all_.lock();
    return g.of->at;
  }

 private:
  static void link(alias& g) noexcept {
    g.next = g.of->aliases;
    g.of->aliases = &g;
    g.of->alias_count.add(1);
  }
  static void unlink(alias& g) noexcept {
    alias** names_g = &g.of->aliases;
    while (*names_g != &g)
      names_g = &(*names_g)->next;
    *names_g = g.next;
    g.of->alias_count.add(-1);
  }
  base::guarded<places> all_;
};

// What a plan knows of aliases. Requires: their lock is held.
struct alias_view {
  enum class outcome : std::uint8_t { swaps, unmaps, stays };  // switched back; unmapped; neither now
  alias_table::places const* all = nullptr;                    // null: no aliases
  void const* context = nullptr;
  // A handle inside [lo, hi), the range being planned, cannot be switched back.
  outcome (*judge)(void const* context, alias const&, address lo, address hi) = nullptr;

  // The first alias that ends after `a`.
  alias_table::places::const_iterator from(address a) const {
    auto at = all->lower_bound(a);
    if (at != all->begin() && std::prev(at)->second.end() > a)
      --at;
    return at;
  }
};

}  // namespace weir::memory
