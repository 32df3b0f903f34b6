// An arena is the address-ordered list of one stream's large pieces: best fit among what is mapped, growth where least is missing.
// Threads: the caller holds the lock of the stream_memory it belongs to. No driver call is made here.
//
// Invariant (piece.h): region = live + pending + slab + free + reserved + gap; and every byte that is not gap or reserved is mapped.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/memory/piece.h"

namespace weir::memory {

struct address_range {
  address at = 0;
  std::size_t bytes = 0;
};

// A window of free pieces and gaps, held as one reserved piece while its gaps are filled without the lock.
struct growth {
  piece* window = nullptr;
  address block = 0;             // where the block will be
  std::size_t bytes = 0;         // of the block
  std::vector<address_range> missing;  // pages to map, in order
  std::uint64_t freed = 0;       // newest stamp among the free pieces inside
  std::size_t missing_bytes = 0;
};

// Handles on their way back to the driver, and the reserved piece that holds their place.
struct released {
  piece* place = nullptr;
  region* in = nullptr;
  std::vector<handle> handles;
};

class arena {
 public:
  arena() = default;  // Throws: bad_alloc
  arena(arena const&) = delete;

  // From mapped memory, for the home stream. Null: nothing fits. Ensures: is == live, bytes a multiple of bins::unit.
  piece* take(std::size_t bytes, std::size_t alignment) noexcept(false) {
    return take_if(bytes, alignment, [](piece const&) { return true; });
  }
  // The same from pieces that `may` takes.
  template <class May>
  piece* take_if(std::size_t bytes, std::size_t alignment, May may) {
    piece* const found = free_.find(bytes, [&](piece const& p) { return round_up(p.at, alignment) + bytes <= p.end() && may(p); });
    return found ? carve(found, round_up(found->at, alignment), bytes) : nullptr;
  }
  // Ensures: the piece is free, merged with its neighbours, and stamped (home, freed). It may no longer be named.
  void give(piece&, std::uint64_t freed) noexcept;

  // Adds addresses: all gap, or (segments) all free.
  void add_region(region&, state);
  void drop_region(region&) noexcept;  // Requires: one free or gap piece
  // Reserves the window that needs fewest unmapped bytes. False: no hole is large enough.
  bool plan(std::size_t bytes, std::size_t alignment, growth&);
  piece* commit(growth&);            // Requires: all of `missing` is mapped. Ensures: live
  void roll_back(growth& g) noexcept { settle_reserved(*g.window); }  // what is mapped becomes free, the rest gap

  // Takes whole handles that `may` go (handle, number of its piece's stamp) out of the free pieces, each stretch of neighbours
  // as one reserved piece, until `want` bytes are found or all was looked at; then `release_done` says what is unmapped since.
  template <class May>
  std::vector<released> reserve_handles(std::size_t want, May may) {
    std::vector<released> all;
    std::vector<piece*> candidates;
    free_.each([&](piece& p) {
      if (p.bytes >= p.in->page_bytes) candidates.push_back(&p);
    });
    all.reserve(candidates.size());
    std::size_t found = 0;
    for (piece* p : candidates) try {
      if (found >= want) break;
      released out{nullptr, p->in, {}};
      for (address a = p->at; a < p->end() && found < want;) {
        handle const& h = *p->in->page(a);
        a = h.at + h.bytes;
        bool const goes = h.at >= p->at && a <= p->end() && may(h, p->freed);
        if (goes) {
          out.handles.push_back(h);
          found += h.bytes;
        } else if (!out.handles.empty()) {
          break;  // one stretch a piece; the next call finds the next
        }
      }
      if (out.handles.empty()) continue;
      out.place = reserve(*p, out.handles.front().at, out.handles.back().at + out.handles.back().bytes);
      all.push_back(std::move(out));
    } catch (std::bad_alloc const&) {
      break;  // what is reserved already goes all the same
    }
    return all;
  }
  piece* reserve_free(region&, address from, address to);  // Requires: inside one free piece
  void release_done(piece& place) noexcept { settle_reserved(place); }

  piece& first_piece(region& r) const noexcept { return *r.first; }
  std::vector<region*> const& regions() const noexcept { return regions_; }
  std::size_t free_pieces() const noexcept { return free_.size(); }
  std::size_t largest_free() const noexcept;
  template <class Do>
  void each_free(Do act) const { free_.each(act); }
  void validate(std::vector<std::string>& wrong, std::string const& who) const;

 private:
  piece* make(region&, address, std::size_t bytes, state);
  void link_after(piece& left, piece& right) noexcept;
  void absorb_next(piece&) noexcept;              // the next piece's bytes become this one's; the next is gone
  piece* cut(piece&, address);                    // the right part, same state; in no bin and no list
  piece* reserve(piece& free, address from, address to);
  void settle_reserved(piece&) noexcept;          // what is mapped of it becomes free, the rest gap
  piece* carve(piece* free, address at, std::size_t bytes);
  void put_free(piece&) noexcept;                 // merges and bins
  void put_gap(piece&) noexcept;
  void gap_insert(piece&) noexcept;
  void gap_erase(piece&) noexcept;

  bins free_;
  piece* gaps_ = nullptr;
  std::vector<region*> regions_;
  std::deque<piece> pieces_;       // stable addresses
  std::vector<piece*> spare_;
};

}  // namespace weir::memory
