// A ghost is a place where a handle stays mapped when it has moved: nobody lives there, and should the handle
// be wanted there again, it comes home without a driver call. What a program does again and again so moves
// handles to and fro for nothing.
// Threads: any; one lock for a device's ghosts, taken last and never held over a driver call.
//
// Invariant: a ghost lies inside one gap, or in a piece that is reserved; only who reserved it may unmap it
// or bring its handle home. Whatever used the handle at a ghost is ordered before whatever it holds at home.
#pragma once
#include <map>
#include <utility>

#include "runtime/base/sync.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/memory/blocks/region.h"

namespace weir::memory {

struct ghost {
  homed_handle* of = nullptr;  // null: only promised
  ghost* next = nullptr;  // of the same handle, older
  address at = 0;
  std::size_t bytes = 0;
  clock::stamp last;      // of its use here: not unmapped before that is complete
  bool granted = true;    // false: the driver would neither let the device use it nor take it back
  bool stuck = false;     // the driver would not take it away

  address end() const noexcept { return at + bytes; }
};

class ghosts {
 public:
  using places = std::map<address, ghost>;
  static constexpr int most = 8;  // of one handle

  // Keeps them as they are while it lives.
  base::guarded<places>::access look() const { return all_.lock(); }

  void expect(address at) { all_.lock()->try_emplace(at); }  // Throws: bad_alloc. Requires: leave() or forget() follows
  void leave(homed_handle& h, address at, clock::stamp last, bool granted) noexcept {
    auto const all = all_.lock();
    ghost& g = all->find(at)->second;
    g = {&h, h.ghosts, at, h.bytes, last, granted, false};
    h.ghosts = &g;
  }
  // The handle has moved, and stays mapped where it was.
  void leave_for(homed_handle& h, address to, clock::stamp last) noexcept {
    address const at = h.at;
    {
      auto const all = all_.lock();
      h.at = to;
    }
    leave(h, at, last, true);
  }
  // The handle's home is where the ghost was, and the ghost where it was at home.
  void swap(ghost& g, clock::stamp last) noexcept {
    auto const all = all_.lock();
    auto node = all->extract(g.at);
    std::swap(g.at, g.of->at);
    g.last = last;
    node.key() = g.at;
    all->insert(std::move(node));
    unlink(g);
    g.next = g.of->ghosts;
    g.of->ghosts = &g;
  }
  void forget(address at) noexcept {  // it is unmapped, or nothing came of it
    auto const all = all_.lock();
    auto const found = all->find(at);
    if (found->second.of) unlink(found->second);
    all->erase(found);
  }
  void keep_stuck(ghost& g) noexcept {
    auto const all = all_.lock();
    g.stuck = true;
  }
  // The oldest of a handle's; bytes 0: it has none, or no more than `spared`.
  struct place {
    address at = 0;
    std::size_t bytes = 0;
    clock::stamp last;
  };
  place oldest(homed_handle const& h, int spared) const noexcept {
    auto const all = all_.lock();
    ghost const* g = h.ghosts;
    int n = g ? 1 : 0;
    for (; g && g->next; g = g->next) ++n;
    return n > spared ? place{g->at, g->bytes, g->last} : place{};
  }
  // at the end: no handle is asked for its ghosts any more
  places take_all() noexcept { return std::exchange(*all_.lock(), {}); }
  bool is_of(homed_handle const& h, address at) const noexcept {
    auto const all = all_.lock();
    auto const found = all->find(at);
    return found != all->end() && found->second.of == &h;
  }
  address home(ghost const& g) const noexcept {
    auto const all = all_.lock();
    return g.of->at;
  }

 private:
  static void unlink(ghost& g) noexcept {
    ghost** link = &g.of->ghosts;
    while (*link != &g) link = &(*link)->next;
    *link = g.next;
  }
  base::guarded<places> all_;
};

// What a plan may know of ghosts. They are looked at with their lock held.
struct ghost_sight {
  enum class fate : std::uint8_t { comes_home, goes, stays };  // without a driver call; by one; not now
  ghosts::places const* all = nullptr;                         // null: there are none
  void const* who = nullptr;
  // No handle comes home from inside the window it is wanted for, which lies from `lo` to `hi`.
  fate (*judge)(void const* who, ghost const&, address lo, address hi) = nullptr;

  // The first that ends behind `from`.
  ghosts::places::const_iterator from(address a) const {
    auto at = all->lower_bound(a);
    if (at != all->begin() && std::prev(at)->second.end() > a) --at;
    return at;
  }
};

}  // namespace weir::memory
