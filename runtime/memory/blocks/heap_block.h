// A block of an arena: one address range in one state. The blocks of a region lie side by side without holes.
// Threads: guarded by the lock of the stream_heap that owns the region.
//
// Invariant: region = live + pending + slab + free + reserved + unmapped, in bytes. In one part (blocks or runs)
// no two neighbours are both free, or both unmapped.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/rule.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/memory/blocks/region.h"

namespace weir::memory {

enum class state : std::uint8_t {
  live,      // allocated
  pending,   // freed; streams that it was marked for may still use it
  slab,      // the run of a slab
  free,      // mapped; all work that used it is ordered before the stamp (home, freed), so before home's next work
  reserved,  // held by a call that talks to the driver without the lock, or left behind: by a handle, or around one
             // that is unusable
  unmapped,  // addresses without physical memory
};

// A stream that a block is marked for.
struct block_user {
  clock::stream_clock* stream = nullptr;
  std::shared_ptr<void const> lifetime{};  // of a borrowed one: so that no other stream gets that object
};
// Streams whose work is over go, so that a long-lived block has few. One that has retired gives its place to
// the clock that covers its work. That clock may cover several streams, and stays once.
template <class Users>
void forget_ended(Users& all) noexcept {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    clock::stream_clock& covering = all[i].stream->of_marks();
    auto const same = [&](block_user const& one) { return one.stream == &covering; };
    bool const is_itself = &covering == all[i].stream;
    // It was kept already, as itself or for another stream.
    if (std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), same))
      continue;
    if (is_itself && covering.is_over())
      continue;
    block_user stays = is_itself ? std::move(all[i]) : block_user{&covering};
    all[kept++] = std::move(stays);
  }
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
}
class block_users {
 public:
  bool has(clock::stream_clock const& user) const noexcept {
    for (block_user const& one : all_) {  // one or two: the loop of a library search is slower
      if (one.stream == &user)
        return true;
    }
    return false;
  }
  void add(clock::stream_clock& user) {  // Throws: bad_alloc
    if (all_.size() == all_.capacity())  // it would grow
      forget_ended(all_);
    user.note_mark();
    all_.push_back({&user, user.alive() == clock::life::borrowed ? user.hold() : nullptr});
  }
  void forget(clock::stream_clock const& user) noexcept {
    std::erase_if(all_, [&](block_user const& one) { return one.stream == &user; });
  }
  void clear() noexcept { all_.clear(); }
  bool empty() const noexcept { return all_.empty(); }
  template <class Do>
  void each(Do act) const {
    for (block_user const& one : all_)
      act(one.stream);
  }

 private:
  std::vector<block_user> all_;
};

// An allocation or a free touches the first two cache lines of its block, and the first of its neighbours.
struct alignas(64) heap_block {
  // Free: how whole_handle_index.h has it. Its span links are in the bin by `span`, or in the noted list.
  enum class index_state : std::uint8_t { no, noted, unsorted, listed, none_inside };
  using hook = boost::intrusive::set_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;
  static constexpr std::uint16_t no_leaf = 0xffff;

  address at = 0;
  std::size_t bytes = 0;
  heap_block* before = nullptr;
  heap_block* after = nullptr;
  region* in = nullptr;
  state is = state::unmapped;
  index_state sorted = index_state::no;
  std::uint8_t seat = 0;
  std::uint16_t leaf = no_leaf;  // large and free: its leaf in lowest_fit.h
  std::uint16_t bin = 0;
  heap_block* bin_before = nullptr;  // free, unmapped: links of its bin
  heap_block* bin_after = nullptr;
  std::uint64_t freed = 0;              // free: the number of its free stamp, on the arena's home
  clock::stream_clock* home = nullptr;  // live: the stream it was allocated for
  std::size_t requested = 0;            // live
  slab* in_slab = nullptr;              // slab
  block_users users;                    // live: other streams that use it
  std::uint64_t recency = 0;            // large and free: a later insert or change has a higher one
  heap_block* span_before = nullptr;
  heap_block* span_after = nullptr;
  std::size_t span = 0;  // listed: bytes of the handles that lie wholly inside
  hook age;
  hook place;  // listed or unmapped: by address
  std::uint16_t span_bin = 0;
  // Neither free nor unmapped, below region::runs: the room behind it (opening_index.h).
  std::uint16_t room_leaf = no_leaf;
  std::uint8_t room_seat = 0;
  heap_block* solid_before = nullptr;
  heap_block* solid_after = nullptr;
  std::size_t room = 0;

  address end() const noexcept { return at + bytes; }
};
static_assert(sizeof(heap_block) == 256 && offsetof(heap_block, bin_after) + sizeof(heap_block*) == 64 &&
              offsetof(heap_block, freed) == 64);
static_assert(offsetof(heap_block, users) == 96 && offsetof(heap_block, recency) == 120 &&
              offsetof(heap_block, span) == 144);

struct lower {
  bool operator()(heap_block const& a, heap_block const& b) const noexcept { return a.at < b.at; }
};
// Blocks by address. Invariant: no two overlap.
class blocks_by_address {
 public:
  void insert(heap_block& p) noexcept { all_.insert(p); }
  void erase(heap_block& p) noexcept { all_.erase(all_.iterator_to(p)); }
  heap_block* around(address at, std::size_t bytes) noexcept {  // null: no block contains the whole range
    auto const after = all_.upper_bound(at, above{});
    if (after == all_.begin())
      return nullptr;
    heap_block& p = *std::prev(after);
    return at + bytes <= p.end() ? &p : nullptr;
  }
  // From the lowest up, until `enough(block)`, which may erase its block.
  template <class Enough>
  void lowest(Enough enough) noexcept {
    for (auto at = all_.begin(); at != all_.end();) {
      heap_block& p = *at++;
      if (enough(p))
        return;
    }
  }
  // From the highest down, likewise.
  template <class Enough>
  void highest(Enough enough) noexcept {
    for (auto at = all_.end(); at != all_.begin();) {
      --at;
      if (enough(*at))
        return;
    }
  }

 private:
  struct above {
    bool operator()(address a, heap_block const& p) const noexcept { return a < p.at; }
  };
  boost::intrusive::set<heap_block, boost::intrusive::member_hook<heap_block, heap_block::hook, &heap_block::place>,
                        boost::intrusive::compare<lower>, boost::intrusive::constant_time_size<false>>
      all_;
};

struct by_bytes {
  static std::size_t size(heap_block const& p) noexcept { return p.bytes; }
  static heap_block*& before(heap_block& p) noexcept { return p.bin_before; }
  static heap_block*& after(heap_block& p) noexcept { return p.bin_after; }
  static std::uint16_t& bin(heap_block& p) noexcept { return p.bin; }
};
struct by_span {
  static std::size_t size(heap_block const& p) noexcept { return p.span; }
  static heap_block*& before(heap_block& p) noexcept { return p.span_before; }
  static heap_block*& after(heap_block& p) noexcept { return p.span_after; }
  static std::uint16_t& bin(heap_block& p) noexcept { return p.span_bin; }
};

// Free blocks by size: exact bins of 512 B steps to 32 KiB, then 32 bins a doubling, and a two-level bitmap.
// Invariant: a block is in bin i exactly when bin_of(its size) == i; bit i is set exactly when bin i has one.
template <class By>
class bins_by {
 public:
  static constexpr std::size_t unit = 512;  // bytes: sizes of an arena's blocks are rounded up to it
  static constexpr int count = 1024;

  static int bin_of(std::size_t bytes) noexcept {
    std::size_t const u = bytes / unit;
    if (u < 64)
      return static_cast<int>(u);
    int const e = std::bit_width(u) - 1;  // 2^e <= u < 2^(e + 1); the five bits below choose among 32 bins
    int const bin = 64 + (e - 6) * 32 + static_cast<int>((u >> (e - 5)) & 31);
    return bin < count ? bin : count - 1;
  }
  void insert(heap_block& p) noexcept { insert(p, bin_of(By::size(p))); }
  void insert(heap_block& p, int q) noexcept {  // Requires: q is its bin
    WEIR_RULE(q == bin_of(By::size(p)), "a listed block is in the bin of another size");
    By::bin(p) = static_cast<std::uint16_t>(q);
    By::before(p) = nullptr;
    By::after(p) = heads_[at(q)];
    if (By::after(p))
      By::before(*By::after(p)) = &p;
    heads_[at(q)] = &p;
    bits_[at(q) / 64] |= std::uint64_t{1} << (q % 64);
    words_ |= 1u << (q / 64);
    ++size_;
  }
  void erase(heap_block& p) noexcept {
    std::size_t const q = By::bin(p);
    WEIR_RULE(size_ > 0 && (By::before(p) ? By::after(*By::before(p)) : heads_[q]) == &p,
              "a listed block is in no bin");
    if (By::before(p)) {
      By::after(*By::before(p)) = By::after(p);
    } else {
      heads_[q] = By::after(p);
      if (!By::after(p)) {
        bits_[q / 64] &= ~(std::uint64_t{1} << (q % 64));
        if (!bits_[q / 64])
          words_ &= ~(1u << (q / 64));
      }
    }
    if (By::after(p))
      By::before(*By::after(p)) = By::before(p);
    By::before(p) = By::after(p) = nullptr;
    --size_;
  }
  // A block of at least `bytes` that `fits` accepts: of the exact size, else the tightest of its own bin,
  // else of the next bin that has one. At most `looks` blocks of a bin are examined, which bounds the cost.
  template <class Fits>
  heap_block* find(std::size_t bytes, Fits fits, int looks = 32) const noexcept {
    for (int q = next(bin_of(bytes)); q >= 0; q = next(q + 1)) {
      heap_block* best = nullptr;
      int left = looks;
      for (heap_block* p = heads_[at(q)]; p && left-- > 0; p = By::after(*p)) {
        if (By::size(*p) < bytes || (best && By::size(*p) >= By::size(*best)) || !fits(*p))
          continue;
        best = p;
        if (By::size(*p) == bytes)
          break;
      }
      if (best)
        return best;
    }
    return nullptr;
  }
  template <class Do>
  void each(Do act) const {  // Requires: act does not change the bins
    for (int q = next(0); q >= 0; q = next(q + 1))
      for (heap_block* p = heads_[at(q)]; p; p = By::after(*p))
        act(*p);
  }
  // From the bin of `bytes` up, until `enough(block)` or `looks` blocks.
  // Returns: the number examined; looks + 1 if there are more.
  template <class Enough>
  int look(std::size_t bytes, Enough enough, int looks) const {
    int seen = 0;
    for (int q = next(bin_of(bytes)); q >= 0; q = next(q + 1))
      for (heap_block* p = heads_[at(q)]; p; p = By::after(*p)) {
        ++seen;
        if (seen > looks || enough(*p))
          return seen;
      }
    return seen;
  }
  // As look(), from the bin of `bytes` down.
  template <class Enough>
  int look_down(std::size_t bytes, Enough enough, int looks) const {
    int seen = 0;
    for (int q = last(bin_of(bytes)); q >= 0; q = last(q - 1))
      for (heap_block* p = heads_[at(q)]; p; p = By::after(*p)) {
        ++seen;
        if (seen > looks || enough(*p))
          return seen;
      }
    return seen;
  }
  std::size_t size() const noexcept { return size_; }
  std::size_t at_most() const noexcept {  // bytes: no block is larger
    int const q = last(count - 1);
    if (q < 0)
      return 0;
    if (q < 64)
      return at(q) * unit;
    if (q == count - 1)  // it has all that is larger, too
      return std::numeric_limits<std::size_t>::max();
    // Bin 64 + 32 d + k begins at (32 + k) << (d + 1) units.
    std::size_t const d = (at(q) - 64) / 32, k = at(q) % 32;
    std::size_t const next_begins = (32 + k + 1) << (d + 1);
    return (next_begins - 1) * unit;
  }

 private:
  static std::size_t at(int q) noexcept { return static_cast<std::size_t>(q); }
  int next(int q) const noexcept {  // the first non-empty bin from q up; -1: none
    if (q >= count)
      return -1;
    if (std::uint64_t const word = bits_[at(q) / 64] >> (q % 64))
      return q + std::countr_zero(word);
    std::uint32_t const above = q / 64 == 15 ? 0 : words_ & ~((2u << (q / 64)) - 1);
    if (!above)
      return -1;
    int const w = std::countr_zero(above);
    return w * 64 + std::countr_zero(bits_[at(w)]);
  }
  int last(int q) const noexcept {  // the last non-empty bin up to q; -1: none
    if (q < 0)
      return -1;
    if (std::uint64_t const word = bits_[at(q) / 64] << (63 - q % 64))
      return q - std::countl_zero(word);
    std::uint32_t const below = words_ & ((1u << (q / 64)) - 1);
    if (!below)
      return -1;
    int const w = 31 - std::countl_zero(below);
    return w * 64 + 63 - std::countl_zero(bits_[at(w)]);
  }
  std::uint32_t words_ = 0;
  std::size_t size_ = 0;
  std::array<std::uint64_t, 16> bits_{};
  std::array<heap_block*, count> heads_{};
};
using bins = bins_by<by_bytes>;

}  // namespace weir::memory
