// More memory for one heap: planned under its lock, filled without it, then committed or rolled back.
// Threads: any, without a heap's lock. Handles come and go meanwhile (physical_memory::changes).
//
// Invariant: what is reserved for a plan serves no other request until it is committed.
#pragma once
#include "runtime/memory/supply/handle_return.h"
#include "runtime/memory/supply/peer_access.h"
#include "runtime/memory/supply/reserve_bound.h"

namespace weir::memory {

class growth {
 public:
  growth(device_context& of, heap_table& heaps, physical_memory& memory, reserve_bound& bound, handle_mover& mover,
         handle_return& back, peer_access& peers)
      : of_(of), heaps_(heaps), memory_(memory), bound_(bound), mover_(mover), return_(back), peers_(peers) {}

  // spare: bytes that may be reserved past the bound's first term. Throws: bad_alloc. Requires: a heap_stay, or a
  // pool that no other thread knows
  driver::status grow(stream_heap& mine, alloc_request const&, void*& out, std::size_t spare = 0);
  // In that heap and that part alone, from free memory or new pages, for the heap's own home. Requires: as grow
  struct place {
    arena::zone part;
    std::size_t missing = ~std::size_t{0};  // bytes that were to be mapped there, if the pages are short
  };
  driver::status grow_there(stream_heap&, place&, alloc_request const&, void*& out);
  // no driver was asked: another thread put the pool to sleep during the search
  static constexpr driver::status asleep{driver::code::not_permitted, -1};
  struct pool_fell_asleep {};  // thrown for it
  // Room is asked for: the bound is epsilon's again, and handles that are free past it go. Waits for nothing.
  void narrow();

 private:
  enum class how : std::uint8_t { usual, long_run, fewest_new_pages };
  std::size_t width_for(stream_heap const& mine, alloc_request const&);  // bytes past the bound. May narrow it
  driver::status grow_by(stream_heap& mine, alloc_request const&, how, void*& out, std::size_t spare,
                         place* only = nullptr);
  driver::status plan(session& mine, alloc_request const&, how, place const* only, growth_plan&);
  bool take_region(session& mine, std::size_t bytes);
  void settle(session& mine, growth_plan&, physical_memory::batch&, std::size_t mapped);
  void roll_back(session& mine, growth_plan&, physical_memory::batch const&);
  arena::places places_for(stream_heap const&) const;
  bool has_room_for_long_run(stream_heap& mine, alloc_request const&);
  driver::status grow_segment(stream_heap& mine, alloc_request const&, void*& out);
  void enter_segment(session& mine, handle const&);  // Throws: bad_alloc, with no effect
  // Fills a plan's window (growth_fill.cpp): makes handles while the bound and the driver allow it,
  // then moves free ones, then makes the rest although the bound is passed.
  class filling;
  driver::status fill(stream_heap& mine, growth_plan&, std::size_t asked, physical_memory::batch&);

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  reserve_bound& bound_;
  handle_mover& mover_;
  handle_return& return_;
  peer_access& peers_;
};

}  // namespace weir::memory
