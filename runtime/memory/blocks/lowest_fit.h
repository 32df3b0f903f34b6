// The large free blocks of a region, or its openings (opening_index.h); finds the lowest that suffices.
// Threads: guarded by the lock of the stream_heap that owns the region.
//
// Blocks lie in leaves of up to 64. A leaf has one range of addresses and no order inside: a search reads all
// of its sizes, sixteen at a time, so that an insert, erase or change is a store or two.
// Invariants
//   leaf r holds the blocks that begin at index starts_[r] or later, before starts_[r + 1]
//   starts_[0] == 0, and order_[0] == 0
//   order_ holds the first used_ leaves, each once: the system provides no memory for the others
//   most_[r] is at least the size of each block of leaf r; a search that it misled lowers it
//   two neighbouring leaves hold more than `join_up_to` blocks together, so that the leaves always suffice
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/blocks/sparse_array.h"

namespace weir::memory {

struct by_block {
  static std::size_t index(heap_block const& p) noexcept { return p.in->page_index(p.at); }
  static std::size_t bytes(heap_block const& p) noexcept { return p.bytes; }
  static std::uint16_t& leaf(heap_block& p) noexcept { return p.leaf; }
  static std::uint8_t& seat(heap_block& p) noexcept { return p.seat; }
  static void touch(heap_block& p, std::uint64_t n) noexcept { p.recency = n; }
};

template <class By>
class lowest_by {
 public:
  static constexpr std::size_t unit = 512;                         // bytes: the unit of stored sizes
  static constexpr std::size_t some_leaves = 8;                    // examined by a search that no order helps
  static constexpr std::size_t most_pages = std::size_t{1} << 21;  // of a region; a larger one has no such list
  // most: indices end below. Requires: no two blocks have an index, or adjacent ones.
  explicit lowest_by(std::size_t most)
      : most_leaves_(leaves_for(most)),
        leaves_(most_leaves_),
        order_(most_leaves_),
        starts_(most_leaves_),
        most_(most_leaves_) {}
  void insert(heap_block& p) noexcept {
    std::size_t const page = By::index(p);
    std::size_t r = rank_of(page);
    if (at(r).n == room) {
      if (count_ == most_leaves_)
        return;  // not listed
      split(r);
      r = rank_of(page);
    }
    put(r, p, page);
  }
  void erase(heap_block& p) noexcept {
    leaf& l = leaves_[By::leaf(p)];
    take_out(l, p);
    if (count_ > 1) [[unlikely]]
      join_around(l.rank);
  }
  // The block begins or ends elsewhere. Requires: no other block lies between its old and its new place.
  [[gnu::always_inline]] void change(heap_block& p) noexcept {
    leaf& l = leaves_[By::leaf(p)];
    std::size_t const page = By::index(p), r = l.rank;
    WEIR_RULE(is_seated(l, p), "a large free block is not listed at its first address");
    // It begins outside the range of its leaf now.
    if (count_ > 1 && (page < starts_[r] || (r + 1 < count_ && page >= starts_[r + 1]))) [[unlikely]]
      return erase(p), insert(p);
    set(l, By::seat(p), p, page);
    if (std::int32_t& most = most_[r]; most < l.sizes[By::seat(p)])
      most = l.sizes[By::seat(p)];
  }
  // `p` takes the place of `was`, which is not listed any more. Requires: as change()
  [[gnu::always_inline]] void replace(heap_block& was, heap_block& p) noexcept {
    By::leaf(p) = std::exchange(By::leaf(was), heap_block::no_leaf);
    By::seat(p) = By::seat(was);
    leaves_[By::leaf(p)].at[By::seat(p)] = &p;
    change(p);
  }
  // Blocks that are large enough, of `some` leaves that may have one.
  template <class Do>
  void each_of(std::size_t bytes, std::size_t some, Do act) const {
    std::int32_t const v = units(bytes + unit - 1);
    for (std::size_t r = 0; r < count_ && some; ++r) {
      if (most_[r] < v)
        continue;
      leaf const& l = at(r);
      for (std::uint32_t i = 0; i < l.n; ++i)
        if (l.sizes[i] >= v)
          act(*l.at[i]);
      --some;
    }
  }
  // The lowest block of at least `bytes` with index `from` or a higher one; null: none.
  heap_block* find(std::size_t bytes, std::size_t from = 0) noexcept {
    if (bytes > (most_units - 1) * unit)  // no stored size is so large
      return nullptr;
    auto const v = static_cast<std::int32_t>((bytes + unit - 1) / unit);
    if (count_ == 1 && !from) [[likely]] {  // rank 0 is always leaf 0
      if (most_[0] < v)
        return nullptr;
      leaf& l = leaves_[0];
      std::int32_t const found = lowest_in<false>(l, v, 0);
      if (found != none) [[likely]]
        return &block_of(l, found);
      most_[0] = largest_in(l);  // it misled this search
      return nullptr;
    }
    for (std::size_t r = from ? rank_of(from) : 0; r < count_; ++r) {
      if (most_[r] < v)
        continue;
      leaf& l = at(r);
      std::int32_t const found =
          from ? lowest_in<true>(l, v, static_cast<std::int32_t>(from << seat_bits)) : lowest_in<false>(l, v, 0);
      if (found != none)
        return &block_of(l, found);
      if (!from)  // the whole leaf was searched
        most_[r] = largest_in(l);
    }
    return nullptr;
  }
  // The tightest of at least `bytes` that `fits` accepts, of equal ones the latest; of `some_leaves` leaves.
  template <class Fits>
  heap_block* tightest(std::size_t bytes, Fits fits) const {
    std::size_t const v = (bytes + unit - 1) / unit;
    // The largest stored size, most_units - 1, stands for all above it: such blocks go by their bytes, below.
    if (count_ == 1 && v < most_units - 1) [[likely]] {
      leaf const& l = leaves_[0];  // rank 0 is always leaf 0
      std::int32_t const least = least_in(l, static_cast<std::int32_t>(v));
      if (least == none)
        return nullptr;
      heap_block* const latest = least < none - 1 ? latest_of_size(l, least, fits) : nullptr;
      if (latest)
        return latest;
    }
    heap_block* best = nullptr;
    for (std::size_t r = 0; r < std::min(count_, some_leaves); ++r) {
      leaf const& l = at(r);
      for (std::uint32_t i = 0; i < l.n; ++i) {
        heap_block& p = *l.at[i];
        if (static_cast<std::size_t>(l.sizes[i]) < v || p.bytes < bytes)
          continue;
        if ((!best || is_tighter(p, *best)) && fits(p))
          best = &p;
      }
    }
    return best;
  }
  template <class Do>
  void each(Do act, std::size_t leaves = std::numeric_limits<std::size_t>::max()) const {  // act may not change them
    for (std::size_t r = 0; r < std::min(count_, leaves); ++r) {
      leaf const& l = at(r);
      for (std::uint32_t i = 0; i < l.n; ++i)
        act(*l.at[i]);
    }
  }
  std::size_t at_most() const noexcept {  // bytes: no block is larger
    if (count_ > some_leaves)
      return std::numeric_limits<std::size_t>::max();
    std::int32_t most = 0;
    for (std::size_t r = 0; r < count_; ++r) {
      if (at(r).n)
        most = std::max(most, most_[r]);
    }
    // The largest stored size stands for all above it.
    if (most == units(std::numeric_limits<std::size_t>::max()))
      return std::numeric_limits<std::size_t>::max();
    return static_cast<std::size_t>(most) * unit;
  }
  template <class Do>
  void each_from_the_lowest(Do act) const {
    for (std::size_t r = 0; r < count_; ++r) {
      leaf const& l = at(r);
      std::array<std::int32_t, room> keys = l.keys;
      std::sort(keys.begin(), keys.begin() + l.n);
      for (std::uint32_t i = 0; i < l.n; ++i)
        act(block_of(l, keys[i]));
    }
  }
  template <class Wrong>
  std::size_t validate(Wrong wrong) const {  // Returns: the number of blocks
    std::size_t all = 0;
    for (std::size_t r = 0; r < count_; ++r) {
      leaf const& l = at(r);
      all += l.n;
      bool good = l.rank == r;
      if (r == 0)
        good &= starts_[0] == 0 && order_[0] == 0;
      else
        good &= starts_[r] > starts_[r - 1] && at(r - 1).n + l.n > join_up_to;
      for (std::uint32_t i = 0; i < room; ++i) {
        if (i >= l.n) {
          good &= l.sizes[i] == 0;
          continue;
        }
        heap_block& p = *l.at[i];
        std::size_t const page = By::index(p);
        good &= By::seat(p) == i && &leaves_[By::leaf(p)] == &l && l.keys[i] == key(page, i) &&
                l.sizes[i] == units(By::bytes(p)) && most_[r] >= l.sizes[i];
        good &= page >= starts_[r] && (r + 1 == count_ || page < starts_[r + 1]);
      }
      if (!good)
        wrong(r);
    }
    return all;
  }

 private:
  static constexpr std::uint32_t room = 64, join_up_to = 48;
  static constexpr int seat_bits = 6;
  static constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
  static constexpr std::size_t most_units = none;
  struct leaf {
    std::array<std::int32_t, room> keys;   // the page where the block begins, and its seat
    std::array<std::int32_t, room> sizes;  // in units; 0: an empty seat
    std::array<heap_block*, room> at;
    std::uint32_t n;  // seats in use: the first ones
    std::uint32_t rank;
  };
  // A block begins at every second page at most, and two neighbouring leaves hold more than join_up_to.
  static std::size_t leaves_for(std::size_t pages) noexcept {
    return std::min<std::size_t>((pages / 2 + 1) * 2 / join_up_to + 4, std::numeric_limits<std::uint16_t>::max());
  }
  static std::int32_t units(std::size_t bytes) noexcept {
    return static_cast<std::int32_t>(std::min(bytes / unit, most_units - 1));
  }
  static std::int32_t key(std::size_t page, std::uint32_t seat) noexcept {
    return static_cast<std::int32_t>(page << seat_bits | seat);
  }
  static heap_block& block_of(leaf const& l, std::int32_t key) noexcept {
    return *l.at[static_cast<std::size_t>(key) & (room - 1)];
  }
  leaf& at(std::size_t rank) const noexcept { return leaves_[order_[rank]]; }
  std::size_t rank_of(std::size_t page) const noexcept {
    if (count_ == 1) [[likely]]
      return 0;
    return static_cast<std::size_t>(std::upper_bound(&starts_[0], &starts_[count_], page) - &starts_[0]) - 1;
  }

  static bool is_tighter(heap_block const& p, heap_block const& than) noexcept {
    return p.bytes != than.bytes ? p.bytes < than.bytes : p.recency > than.recency;
  }
  template <class Fits>
  [[gnu::always_inline]] static heap_block* latest_of_size(leaf const& l, std::int32_t size, Fits& fits) {
    heap_block* latest = nullptr;
    for (std::uint64_t seats = of_size(l, size); seats; seats &= seats - 1) {
      heap_block* const p = l.at[static_cast<std::size_t>(std::countr_zero(seats))];
      if ((!latest || p->recency > latest->recency) && fits(*p))
        latest = p;
    }
    return latest;
  }

  void set(leaf& l, std::uint32_t seat, heap_block& p, std::size_t page) noexcept {
    By::touch(p, ++last_recency_);
    l.keys[seat] = key(page, seat);
    l.sizes[seat] = units(By::bytes(p));
  }
  void put(std::size_t r, heap_block& p, std::size_t page) noexcept {
    leaf& l = at(r);
    By::leaf(p) = order_[r];
    By::seat(p) = static_cast<std::uint8_t>(l.n++);
    l.at[By::seat(p)] = &p;
    set(l, By::seat(p), p, page);
    most_[r] = std::max(most_[r], units(By::bytes(p)));
  }
  static bool is_seated(leaf const& l, heap_block& p) noexcept { return By::seat(p) < l.n && l.at[By::seat(p)] == &p; }
  static void take_out(leaf& l, heap_block& p) noexcept {  // the last block moves to its seat
    WEIR_RULE(is_seated(l, p), "a large free block is not listed at its first address");
    std::uint32_t const seat = By::seat(p), last = --l.n;
    heap_block& moved = *l.at[last];
    l.at[seat] = &moved;
    l.keys[seat] = (l.keys[last] & ~static_cast<std::int32_t>(room - 1)) | static_cast<std::int32_t>(seat);
    l.sizes[seat] = l.sizes[last];
    By::seat(moved) = static_cast<std::uint8_t>(seat);
    l.sizes[last] = 0;
    By::leaf(p) = heap_block::no_leaf;
  }
  void move_all(std::size_t from, std::size_t to, std::size_t first_page) noexcept {  // blocks from that page on
    leaf& l = at(from);
    // From the last seat down: take_out() moves the last block, which was looked at, to the free seat.
    for (std::uint32_t i = l.n; i-- > 0;) {
      heap_block& p = *l.at[i];
      std::size_t const page = By::index(p);
      if (page < first_page)
        continue;
      take_out(l, p);
      put(to, p, page);
    }
  }
  void split(std::size_t r) noexcept {
    std::array<std::int32_t, room> keys = at(r).keys;
    std::nth_element(keys.begin(), keys.begin() + room / 2, keys.end());
    // The page where the upper half begins.
    auto const half = static_cast<std::size_t>(keys[room / 2]) >> seat_bits;
    // A spare leaf comes behind leaf r.
    if (count_ == used_)
      order_[count_] = static_cast<std::uint16_t>(used_++);
    std::rotate(&order_[r + 1], &order_[count_], &order_[count_ + 1]);
    std::copy_backward(&starts_[r + 1], &starts_[count_], &starts_[count_ + 1]);
    std::copy_backward(&most_[r + 1], &most_[count_], &most_[count_ + 1]);
    ++count_;
    starts_[r + 1] = static_cast<std::uint32_t>(half), most_[r + 1] = 0;
    number_from(r + 1);
    move_all(r, r + 1, half);
    // A half and its other neighbour may have few blocks together.
    join_around(r + 1);
    join_around(r);
  }
  void join_around(std::size_t r) noexcept {
    join(r);
    if (r > 0)
      join(r - 1);
  }
  void join(std::size_t r) noexcept {  // with its right neighbour, if both have few blocks
    if (r + 1 >= count_ || at(r).n + at(r + 1).n > join_up_to)
      return;
    move_all(r + 1, r, 0);
    // The right leaf is spare now.
    std::rotate(&order_[r + 1], &order_[r + 2], &order_[count_]);
    std::copy(&starts_[r + 2], &starts_[count_], &starts_[r + 1]);
    std::copy(&most_[r + 2], &most_[count_], &most_[r + 1]);
    --count_;
    number_from(r + 1);
  }
  void number_from(std::size_t r) noexcept {
    for (; r < count_; ++r)
      at(r).rank = static_cast<std::uint32_t>(r);
  }

  using four = std::int32_t __attribute__((vector_size(16)));
  static four read(std::int32_t const* from) noexcept {
    four some;
    std::memcpy(&some, from, sizeof some);
    return some;
  }
  static four all_of(std::int32_t v) noexcept { return four{v, v, v, v}; }
  static four less_of(four a, four b) noexcept { return a < b ? a : b; }
  static std::int32_t least_of(four v) noexcept {  // without branches, which would be unpredictable
    v = less_of(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return less_of(v, __builtin_shufflevector(v, v, 1, 0, 3, 2))[0];
  }
  // Also reads empty seats, whose size is 0: the number of blocks then decides no branch within sixteen.
  template <class Look>
  [[gnu::always_inline]] static void each_four(leaf const& l, Look look) noexcept {
    std::size_t i = 0;
    do {
#pragma GCC unroll 4
      for (std::size_t k = 0; k < 4; ++k, i += 4)
        look(i, read(&l.sizes[i]));
    } while (i < l.n);
  }
  template <bool bounded>
  static std::int32_t lowest_in(leaf const& l, std::int32_t v, std::int32_t from) noexcept {  // Returns: its key
    four const less = all_of(v - 1), before = all_of(from - 1), nothing = all_of(none);
    four best = nothing;
    each_four(l, [&](std::size_t i, four sizes) {
      four const k = read(&l.keys[i]), large = sizes > less, fits = bounded ? large & (k > before) : large;
      // Where it does not fit, the key becomes `none`, which is the largest.
      best = less_of(k | (nothing & ~fits), best);
    });
    return least_of(best);
  }
  static std::int32_t least_in(leaf const& l, std::int32_t v) noexcept {  // the smallest size from v up
    four const less = all_of(v - 1), nothing = all_of(none);
    four best = nothing;
    each_four(l, [&](std::size_t, four sizes) {
      four const fits = sizes > less;
      best = less_of((sizes & fits) | (nothing & ~fits), best);
    });
    return least_of(best);
  }
  static std::uint64_t of_size(leaf const& l, std::int32_t v) noexcept {  // a bit for each seat
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < l.n; i += 4) {
      four const bit = four{1, 2, 4, 8} & (read(&l.sizes[i]) == all_of(v));
      four const two = bit | __builtin_shufflevector(bit, bit, 2, 3, 0, 1);
      out |= static_cast<std::uint64_t>(two[0] | two[1]) << i;
    }
    return out;
  }
  static std::int32_t largest_in(leaf const& l) noexcept {
    return l.n ? *std::max_element(l.sizes.begin(), l.sizes.begin() + l.n) : 0;
  }

  std::size_t most_leaves_;
  sparse_array<leaf> leaves_;
  sparse_array<std::uint16_t> order_;  // the first count_: by address; the rest are spare
  sparse_array<std::uint32_t> starts_;
  sparse_array<std::int32_t> most_;
  std::size_t count_ = 1;
  std::uint64_t last_recency_ = 0;
  std::size_t used_ = 1;
};

class lowest_fit : public lowest_by<by_block> {
 public:
  using lowest_by::lowest_by;
};

}  // namespace weir::memory
