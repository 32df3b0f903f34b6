// The openings of a region: each is the free and unmapped memory between two neighbours that are neither.
// Threads: guarded by the lock of the stream_heap that owns the region.
//
// Pages can move, so a block's place does not depend on which pages are mapped: a program that repeats its
// requests then finds the same places. Openings lie below region::runs.
// Invariants
//   `solid_before` and `solid_after` link a region's blocks that are neither free nor unmapped, and its ends
//   room = solid_after->at - end(); an opening of a granule and more is listed, unless the index is full
#pragma once
#include "runtime/memory/blocks/lowest_fit.h"

namespace weir::memory {

struct by_room {
  static std::size_t index(heap_block const& p) noexcept { return (p.end() - p.in->base) / granule; }
  static std::size_t bytes(heap_block const& p) noexcept { return p.room; }
  static std::uint16_t& leaf(heap_block& p) noexcept { return p.room_leaf; }
  static std::uint8_t& seat(heap_block& p) noexcept { return p.room_seat; }
  static void touch(heap_block&, std::uint64_t) noexcept {}
};

class opening_index {
 public:
  static constexpr std::size_t most_bytes = std::size_t{1} << 40;  // of a region: indices of granules have 25 bits
  explicit opening_index(region& in) : index_(2 * (in.bytes / granule + 1)) {
    floor_.in = ceiling_.in = &in;
    floor_.at = in.base, ceiling_.at = in.runs;
    floor_.solid_after = &ceiling_, ceiling_.solid_before = &floor_;
    // One opening, which each solid block then divides.
    floor_.room = in.runs - in.base;
    list(floor_);
    for (heap_block* p = in.first; p && p->at < in.runs; p = p->after)
      if (is_solid(*p))
        close(*p);
  }
  opening_index(opening_index const&) = delete;
  static bool is_solid(heap_block const& p) noexcept { return p.is != state::free && p.is != state::unmapped; }

  // `p` is free or unmapped no longer.
  [[gnu::always_inline]] void close(heap_block& p) noexcept {
    heap_block* left = p.before;
    while (left && !is_solid(*left))
      left = left->before;
    if (!left)
      left = &floor_;
    heap_block& right = *left->solid_after;
    WEIR_RULE(right.solid_before == left, "a block is not linked to its solid neighbour");
    WEIR_RULE(left->end() <= p.at && p.end() <= right.at, "the room behind a block is wrong");
    p.solid_before = left, p.solid_after = &right;
    left->solid_after = right.solid_before = &p;
    left->room = p.at - left->end(), p.room = right.at - p.end();
    // The room behind `left` is too small for an entry now, and p gets it.
    if (left->room < granule && p.room >= granule && left->room_leaf != heap_block::no_leaf) [[likely]]
      return index_.replace(*left, p);
    list(*left), list(p);
  }
  // `p` is about to become free or unmapped.
  [[gnu::always_inline]] void open(heap_block& p) noexcept {
    heap_block& left = *p.solid_before;
    heap_block& right = *p.solid_after;
    WEIR_RULE(left.solid_after == &p && right.solid_before == &p, "a block is not linked to its solid neighbour");
    left.solid_after = &right, right.solid_before = &left;
    left.room = right.at - left.end();
    p.room = 0;
    // One of the two entries serves the opening that they have become.
    if (p.room_leaf != heap_block::no_leaf) {
      if (left.room_leaf == heap_block::no_leaf)
        return index_.replace(p, left);
      index_.erase(p);
    }
    list(left);
  }
  // `right` was cut off the end of `p`; neither is free or unmapped.
  void split(heap_block& p, heap_block& right) noexcept {
    right.solid_before = &p, right.solid_after = p.solid_after;
    p.solid_after->solid_before = &right, p.solid_after = &right;
    right.room = std::exchange(p.room, 0);
    if (p.room_leaf != heap_block::no_leaf)
      index_.replace(p, right);
  }
  // The block whose opening is the lowest with that much room; null: none.
  heap_block* lowest(std::size_t bytes) noexcept { return index_.find(bytes); }
  // The next one above the opening behind `left`. Two openings have different indices.
  heap_block* next(std::size_t bytes, heap_block const& left) noexcept {
    return index_.find(bytes, by_room::index(left) + 1);
  }
  template <class Do>
  void some_of(std::size_t bytes, Do act) const {
    index_.each_of(bytes, most_leaves, act);
  }
  // The first free or unmapped block behind. Requires: there is one
  heap_block& first(heap_block const& left) const noexcept {
    return &left == &floor_ ? *floor_.in->first : *left.after;
  }
  template <class Say>
  void validate(Say say) const {
    heap_block const* left = &floor_;
    std::size_t rooms = 0;
    for (heap_block const* p = floor_.in->first; p && p->at < floor_.in->runs; p = p->after) {
      if (!is_solid(*p))
        continue;
      if (left->solid_after != p || p->solid_before != left)
        say("a block is not linked to its solid neighbour", p->at);
      if (left->room != p->at - left->end())
        say("the room behind a block is wrong before", p->at);
      rooms += left->room_leaf != heap_block::no_leaf;
      left = p;
    }
    rooms += left->room_leaf != heap_block::no_leaf;
    if (left->solid_after != &ceiling_ || left->room != ceiling_.at - left->end())
      say("the last opening does not end where runs begin, behind", left->at);
    if (index_.validate([&](std::size_t leaf) { say("an opening is listed wrongly, in leaf", leaf); }) != rooms)
      say("the index has another number of openings than there are", floor_.at);
  }

 private:
  static constexpr std::size_t most_leaves = 32;  // examined by one search
  void list(heap_block& p) noexcept {
    bool const listed = p.room_leaf != heap_block::no_leaf;
    if (p.room >= granule)
      listed ? index_.change(p) : index_.insert(p);
    else if (listed)
      index_.erase(p);
  }
  heap_block floor_, ceiling_;  // no bytes: the ends of the part for blocks
  lowest_by<by_room> index_;    // by the block before the opening
};

}  // namespace weir::memory
