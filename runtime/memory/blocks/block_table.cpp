// The slow half of block_table.h: levels of a set, rows of granules, and runs of slabs.
// Threads: as block_table.h.
#include "runtime/memory/blocks/block_table.h"

#include <algorithm>
#include <bit>

#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/blocks/slab.h"

namespace weir::memory {

bit_tree::bit_tree(std::size_t n) {
  do {
    n = (n + 63) / 64;
    levels_.emplace_back(n);
  } while (n > 1);
  lowest_ = &levels_[0][0];
}

void bit_tree::add(std::size_t i) noexcept {
  for (auto& level : levels_) {
    bool const known = level[i / 64] != 0;
    level[i / 64] |= std::uint64_t{1} << (i % 64);
    if (known)
      return;
    i /= 64;
  }
}

void bit_tree::erase(std::size_t i) noexcept {
  for (auto& level : levels_) {
    level[i / 64] &= ~(std::uint64_t{1} << (i % 64));
    if (level[i / 64])
      return;
    i /= 64;
  }
}

std::size_t bit_tree::last_up_to(std::size_t i) const noexcept {
  std::size_t depth = 0;
  std::uint64_t found = 0;
  for (bool self = true;; self = false) {  // up: at the lowest level i itself counts, above it only what is left of it
    std::uint64_t const word = levels_[depth][i / 64];
    unsigned const bit = i % 64;
    found =
        word & (self ? (bit == 63 ? ~std::uint64_t{0} : (std::uint64_t{2} << bit) - 1) : (std::uint64_t{1} << bit) - 1);
    if (found)
      break;
    i /= 64;
    if (++depth == levels_.size())
      return none;
  }
  std::size_t at = i / 64 * 64 + static_cast<std::size_t>(63 - std::countl_zero(found));
  while (depth > 0) {
    std::uint64_t const word = levels_[--depth][at];
    at = at * 64 + static_cast<std::size_t>(63 - std::countl_zero(word));
  }
  return at;
}

heap_block* granule_table::at(std::size_t i) const noexcept {
  heap_block* const p = near(i);
  return !p || stretches_[i / row] & 1 || p->at / granule - first_ == i ? p : nullptr;
}

std::array<heap_block*, granule_table::row>& granule_table::among(std::uintptr_t& s) noexcept {
  if (!(s & 1)) {
    auto* const alone = reinterpret_cast<heap_block*>(s);  // NOLINT(performance-no-int-to-ptr)
    s = ++used_ << 1 | 1;
    if (alone)
      rows_[used_].of[(alone->at / granule - first_) % row] = alone;
  }
  return rows_[s >> 1].of;
}

block_table::block_table(address b, std::size_t bytes)
    : base_(b),
      starts_(b, bytes / granule + 2),
      wholes_(bytes / granule + 2),
      slabs_(bytes / cell + 2),
      started_(bytes / granule + 2) {}

// each(i, whole, from, to): of the granules that a run touches, what it has of the i-th; whole: all of it.
template <class Each>
void block_table::each_granule(heap_block const& p, Each each) noexcept {
  for (address at = p.at; at < p.end(); at = round_down(at, granule) + granule) {
    address const end = std::min(round_down(at, granule) + granule, p.end());
    each(index(at), end - at == granule, at, end);
  }
}

void block_table::enter(heap_block& p) noexcept {
  if (p.is != state::slab)
    return enter_block(p, p.at);
  each_granule(p, [&](std::size_t i, bool whole, address from, address to) {
    if (whole)
      base::store_release(wholes_[i], p.in_slab);
    else
      set_cells(from, to, p.in_slab);
  });
}

void block_table::leave(heap_block& p) noexcept {
  if (p.is != state::slab)
    return leave_block(p.at);
  each_granule(p, [&](std::size_t i, bool whole, address from, address to) {
    slab* const all = wholes_[i];
    if (all && !whole) {  // slots of what stays may be looked for meanwhile
      address const begin = round_down(from, granule);
      set_cells(begin, from, all);
      set_cells(to, begin + granule, all);
    }
    if (all)
      base::store_release<slab*>(wholes_[i], nullptr);
    else
      set_cells(from, to, nullptr);
  });
}

void block_table::set_cells(address from, address to, slab* value) noexcept {
  for (address a = from; a < to; a += cell)
    slabs_[cell_index(a)] = value;
}

heap_block* block_table::covering(address a) const noexcept {
  if (slab const* const s = slab_at(a))
    return s->part_at(a);
  std::size_t i = index(a);
  heap_block* p = starts_.at(i);
  if (!p || p->at > a) {
    for (p = nullptr; !p; p = starts_.at(i)) {
      if (i == 0)
        return nullptr;
      std::size_t const before = started_.last_up_to(i - 1);
      if (before == bit_tree::none)
        return nullptr;
      if (!starts_.at(before))
        started_.erase(before);
      i = before;
    }
  }
  return a < p->at + p->bytes ? p : nullptr;
}

}  // namespace weir::memory
