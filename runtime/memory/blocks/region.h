// Address space and pages of one device: one reservation, cut into regions, and what is mapped where.
// Threads: address_space any; a region belongs to one arena and is guarded by that arena's lock,
// but for `base`, `bytes`, `owner`.
//
// Invariants
//   every page of a region has exactly one handle, or none; a handle's pages are all its own
//   an address has one owner: region = by_extent[(address - base) / extent], found by subtraction
#pragma once
#include <algorithm>
#include <bit>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/blocks/sparse_array.h"

namespace weir::memory {

using driver::address;
// bytes: no two blocks of an arena start in the same granule; a run has whole ones, unless it is short
inline constexpr std::size_t granule = 32 << 10;
inline constexpr std::size_t cell = 8 << 10;      // bytes: a cell is of one slab's run, or of none

class lowest_fit;
class opening_index;
class stream_heap;
struct alias;
struct heap_block;
struct slab;

// Requires: `to` is a power of two, as pages, granules, units and alignments are.
inline constexpr std::size_t round_up(std::size_t n, std::size_t to) noexcept { return (n + to - 1) & ~(to - 1); }
inline constexpr std::size_t round_down(std::size_t n, std::size_t to) noexcept { return n & ~(to - 1); }

struct address_range {
  address at = 0;
  std::size_t bytes = 0;
};

// A set of small integers that answers "the largest member that is not above i" in a few steps.
class bit_tree {
 public:
  static constexpr std::size_t none = ~std::size_t{0};
  explicit bit_tree(std::size_t n);
  void insert(std::size_t i) noexcept {
    if (!(lowest_[i / 64] >> (i % 64) & 1)) add(i);
  }
  void erase(std::size_t i) noexcept;
  std::size_t last_up_to(std::size_t i) const noexcept;

 private:
  void add(std::size_t i) noexcept;
  std::vector<sparse_array<std::uint64_t>> levels_;
  std::uint64_t const* lowest_ = nullptr;  // level 0
};

// Physical memory: one create, or one segment.
// It is mapped whole, at the one place that is its home, and at its ghosts (alias_table.h).
struct handle {
  driver::memory_handle physical = driver::memory_handle::none;  // none: a segment
  address at = 0;             // its home. Written also with the lock of the ghosts held, where it has some
  std::size_t bytes = 0;
  std::uint64_t readers = 0;  // bit d: device d may use it
  bool kept = false;          // at the end: something in it is still in use
  bool asleep = false;        // no page is mapped there until its pool wakes; `physical` is none
};
// One that may have ghosts: what a stream's memory keeps.
struct aliased_handle : handle {
  alias* aliases = nullptr;    // the newest; with their lock
};

// A piece for some granules. Large blocks start far from each other: a stretch of 64 granules in which one
// starts is one word, 64 times fewer pages and lines than a word for each granule. Where several start it is
// a row of 64 words, and stays one.
class granule_table {
 public:
  static constexpr std::size_t row = 64;
  granule_table(address base, std::size_t n) : first_(base / granule), stretches_(n / row + 1), rows_(n / row + 2) {}
  // For granule i, or, where it is the only one of its stretch, for any of the stretch. Null: there is none.
  heap_block* near(std::size_t i) const noexcept {
    std::uintptr_t const s = stretches_[i / row];
    return s & 1 ? rows_[s >> 1].of[i % row] : reinterpret_cast<heap_block*>(s);  // NOLINT(performance-no-int-to-ptr)
  }
  // starts: p begins in this granule, and stays there until clear()
  void set(std::size_t i, heap_block* p, bool starts) noexcept {
    std::uintptr_t& s = stretches_[i / row];
    if (s == 0 && starts) [[likely]] s = reinterpret_cast<std::uintptr_t>(p);
    else among(s)[i % row] = p;
  }
  void clear(std::size_t i) noexcept {
    std::uintptr_t& s = stretches_[i / row];
    if (s & 1) rows_[s >> 1].of[i % row] = nullptr;
    else s = 0;
  }
  heap_block* at(std::size_t i) const noexcept;  // of granule i alone

 private:
  struct words {
    std::array<heap_block*, row> of;
  };
  std::array<heap_block*, row>& among(std::uintptr_t& s) noexcept;
  std::size_t const first_;
  sparse_array<std::uintptr_t> stretches_;  // 0, a piece, or the number of a row, odd
  sparse_array<words> rows_;                // in the order they were needed: side by side
  std::uintptr_t used_ = 0;
};

// A contiguous range of addresses whose blocks all belong to one arena.
class alignas(64) region {
 public:
  region(address base, std::size_t bytes, std::size_t page_bytes, stream_heap* owner);
  ~region();
  address const base;
  std::size_t const bytes;
  std::size_t const page_bytes;
  base::atomic<stream_heap*> owner;
  heap_block* first = nullptr;  // the piece at `base`
  address runs;  // from here on runs of slabs, which live long, lie apart from blocks; the end: they lie among them

  static constexpr std::size_t large_pages = 2;
  std::size_t const large_bytes = large_pages * page_bytes;
  // free pieces below `runs` of so many bytes and more. Null: a segment, or terabytes
  std::unique_ptr<lowest_fit> large;
  std::unique_ptr<opening_index> rooms;  // below `runs`. Null: as above, or no block was placed by it yet

  handle* page(address a) const noexcept { return pages_[(a - base) >> page_shift_]; }
  std::size_t page_index(address a) const noexcept { return (a - base) >> page_shift_; }
  void set_pages(handle const& where, handle* value) noexcept;
  // Which block covers an address: a block is entered at its start, a slab's run at each of its cells.
  void enter(heap_block&) noexcept;
  void leave(heap_block&) noexcept;
  void enter_block(heap_block& p, address at) noexcept {  // no run
    std::size_t const i = index(at);
    starts_.set(i, &p, true);
    started_.insert(i);
  }
  void leave_block(address at) noexcept { starts_.clear(index(at)); }
  heap_block* covering(address) const noexcept;  // null: no block, no run
  // the block that starts in the same granule, or perhaps another; null: none
  heap_block* starting_near(address a) const noexcept { return starts_.near(index(a)); }
  // Whose run this lies in. Threads: any while a slot there is live, without a lock.
  slab* slab_at(address a) const noexcept {
    slab* const whole = slab_of_granule(a);
    return whole ? whole : slab_in_cell(a);
  }
  // null: it is not one slab's
  slab* slab_of_granule(address a) const noexcept { return base::load_acquire(wholes_[index(a)]); }
  // null: its granule is one slab's, or it is none's
  slab* slab_in_cell(address a) const noexcept { return slabs_[cell_index(a)]; }
  slab** wholes() const noexcept { return &wholes_[0]; }  // by granule from the one of `base` on

 private:
  std::size_t index(address a) const noexcept { return a / granule - base / granule; }
  std::size_t cell_index(address a) const noexcept { return a / cell - base / cell; }
  template <class Each>
  void each_granule(heap_block const&, Each) noexcept;
  void set_cells(address from, address to, slab*) noexcept;
  int const page_shift_;
  sparse_array<handle*> pages_;
  granule_table starts_;
  // Invariant: a granule that is one slab's has it here, and its cells have null; of others each cell has its
  // own. A slot's way to its slab may change while it is live: cells are written before the whole is taken
  // out, so that who finds that null sees them.
  sparse_array<slab*> wholes_;   // a granule
  sparse_array<slab*> slabs_;    // a cell
  // granules where a block starts, or has started: a search that meets one of these takes it out
  mutable bit_tree started_;
};

// How large the handles under a block are.
struct handle_sizes {
  std::size_t page = 0, most = 0;  // bytes
  std::size_t last = 0;            // bytes: a rest of so much is one handle. 0: handles are powers of two of pages

  // Bytes of the next one, where `left` are missing. Requires: left is pages.
  std::size_t next(std::size_t left) const noexcept {
    if (last) return left <= last ? left : most;
    return std::bit_floor(std::min(left, most) / page) * page;
  }
};

class address_space {  // one a device
 public:
  address_space(driver::driver&, int device);
  ~address_space();
  address_space(address_space const&) = delete;

  // One reservation of `wanted` bytes (0: 64 times the device's memory,
  // at most 16 TiB), halved until it fits.
  driver::status open(driver::device_info const&, std::size_t wanted);
  bool maps() const noexcept { return info_.maps; }
  std::size_t page_bytes() const noexcept { return page_; }
  // For a block of `block` bytes, on a device with `reserved` bytes that may reserve `capacity`.
  // A handle stays mapped while a part of it is in use, so the blocks at its ends waste up to its size.
  // A handle is at most 1/8192 of what is reserved, or 10 `epsilon` of its block, 1/8192 of the capacity and
  // 1/128 of what is reserved; it has 1 to 32 pages.
  handle_sizes handles_under(std::size_t block, std::size_t reserved, std::size_t capacity,
                             double epsilon) const noexcept;
  // Where none is moved and each costs as much again for every peer:
  // as few as can be, up to 128 pages, 256 MiB on GPUs.
  handle_sizes handles_that_stay() const noexcept { return {page_, 128 * page_, 128 * page_}; }
  driver::device_info const& info() const noexcept { return info_; }

  // Null: no addresses left. `has`: bytes of addresses that the owner has already.
  region* take(std::size_t at_least, stream_heap& owner, std::size_t has = 0);
  region* adopt_segment(address, std::size_t bytes, stream_heap& owner);
  // A segment is in no book any more when the driver gets it:
  // its addresses may come back at once, to another thread.
  using segment = std::map<address, std::unique_ptr<region>>::node_type;
  segment set_aside(region const&) noexcept;
  void put_back(segment&&) noexcept;  // the driver would not take it
  void drop(segment&&) noexcept;
  // Threads: any, without a lock where the device maps.
  region* find(void const*) const noexcept;
  address base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return extents_ << extent_shift_; }
  void abandon() noexcept { abandoned_ = true; }  // something is still in use: the reservation stays

 private:
  driver::driver& machine_;
  int const device_;
  driver::device_info info_;
  int extent_shift_ = 0;
  std::size_t page_ = 0, reserved_ = 0, extent_ = 0, extents_ = 0, used_ = 0;  // used_ under lock_
  std::size_t generous_ = 0;  // bytes of a region while there is plenty
  address base_ = 0;
  bool abandoned_ = false;
  std::unique_ptr<base::atomic<region*>[]> by_extent_;
  mutable base::mutex lock_;
  std::vector<std::unique_ptr<region>> regions_;                 // under lock_
  std::map<address, std::unique_ptr<region>> segments_;          // under lock_; by base
  static constexpr std::size_t most_dropped = 64;
  std::vector<std::unique_ptr<region>> dropped_;  // under lock_; the last few: somebody may be asking about them now
};

}  // namespace weir::memory
