// Which block covers an address of a region, and which slab has a slot there.
// Threads: the lock of the region's heap, but for what says otherwise.
//
// Invariant: a block is entered at its start, a slab's run at each of its cells; no two of them overlap.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/memory/blocks/address.h"
#include "runtime/memory/blocks/sparse_array.h"

namespace weir::memory {

struct heap_block;
struct slab;

// A set of small integers that answers "the largest member that is not above i" in a few steps.
class bit_tree {
 public:
  static constexpr std::size_t none = ~std::size_t{0};
  explicit bit_tree(std::size_t n);
  void insert(std::size_t i) noexcept {
    if (!(lowest_[i / 64] >> (i % 64) & 1))
      add(i);
  }
  void erase(std::size_t i) noexcept;
  std::size_t last_up_to(std::size_t i) const noexcept;

 private:
  void add(std::size_t i) noexcept;
  std::vector<sparse_array<std::uint64_t>> levels_;
  std::uint64_t const* lowest_ = nullptr;  // level 0
};

// A block for some granules. Large blocks start far from each other: a stretch of 64 granules in which one
// starts is one word, 64 times fewer pages and lines than a word for each granule. Where several start it is
// a row of 64 words, and stays one.
class granule_table {
 public:
  static constexpr std::size_t row = 64;
  granule_table(address base, std::size_t n) : first_(base / granule), stretches_(n / row + 1), rows_(n / row + 2) {}
  // The block that begins in granule i. A stretch with one block alone answers with that, wherever it begins.
  // Null: none begins there.
  heap_block* near(std::size_t i) const noexcept {
    std::uintptr_t const s = stretches_[i / row];
    if (is_row(s))
      return rows_[s >> 1].of[i % row];
    return reinterpret_cast<heap_block*>(s);  // NOLINT(performance-no-int-to-ptr)
  }
  // Requires: p begins in granule i, and stays there until clear(); no other block does
  void set(std::size_t i, heap_block* p) noexcept {
    std::uintptr_t& s = stretches_[i / row];
    if (s == 0) [[likely]]
      s = reinterpret_cast<std::uintptr_t>(p);
    else
      among(s)[i % row] = p;
  }
  void clear(std::size_t i) noexcept {
    std::uintptr_t& s = stretches_[i / row];
    if (is_row(s))
      rows_[s >> 1].of[i % row] = nullptr;
    else
      s = 0;
  }
  heap_block* at(std::size_t i) const noexcept;  // of granule i alone

 private:
  struct words {
    std::array<heap_block*, row> of;
  };
  static bool is_row(std::uintptr_t stretch) noexcept { return stretch & 1; }
  std::array<heap_block*, row>& among(std::uintptr_t& s) noexcept;
  std::size_t const first_;
  sparse_array<std::uintptr_t> stretches_;  // 0, a block, or the number of a row, odd
  sparse_array<words> rows_;                // in the order they were needed: side by side
  std::uintptr_t used_ = 0;
};

class block_table {
 public:
  block_table(address base, std::size_t bytes);
  void enter(heap_block&) noexcept;
  void leave(heap_block&) noexcept;
  void enter_block(heap_block& p, address at) noexcept {  // no run
    std::size_t const i = index(at);
    starts_.set(i, &p);
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
  std::size_t index(address a) const noexcept { return a / granule - base_ / granule; }
  std::size_t cell_index(address a) const noexcept { return a / cell - base_ / cell; }
  template <class Each>
  void each_granule(heap_block const&, Each) noexcept;
  void set_cells(address from, address to, slab*) noexcept;
  address const base_;
  granule_table starts_;
  // Invariant: a granule that is one slab's has it here, and its cells have null; of others each cell has its
  // own. A slot's way to its slab may change while it is live: cells are written before the whole is taken
  // out, so that a thread that finds null sees them.
  sparse_array<slab*> wholes_;  // a granule
  sparse_array<slab*> slabs_;   // a cell
  // granules where a block starts, or has started: a search that meets one of these takes it out
  mutable bit_tree started_;
};

}  // namespace weir::memory
