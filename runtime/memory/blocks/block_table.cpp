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
    bool const had_members = level[i / 64] != 0;
    level[i / 64] |= std::uint64_t{1} << (i % 64);
    if (had_members)  // then the levels above know the word
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
  auto const bit = [](std::size_t n) { return std::uint64_t{1} << (n % 64); };
  // Up: at the lowest level i itself counts, above it only the words below its own.
  std::size_t depth = 0;
  std::uint64_t found = levels_[0][i / 64] & (bit(i) | (bit(i) - 1));
  while (!found) {
    i /= 64;
    if (++depth == levels_.size())
      return none;
    found = levels_[depth][i / 64] & (bit(i) - 1);
  }
  // Down: the last member of each word.
  std::size_t at = i / 64 * 64 + static_cast<std::size_t>(63 - std::countl_zero(found));
  while (depth > 0) {
    std::uint64_t const word = levels_[--depth][at];
    at = at * 64 + static_cast<std::size_t>(63 - std::countl_zero(word));
  }
  return at;
}

heap_block* granule_table::at(std::size_t i) const noexcept {
  heap_block* const p = near(i);
  if (!p || is_row(stretches_[i / row]))
    return p;
  // The only one of its stretch may start in another granule.
  return p->at / granule - first_ == i ? p : nullptr;
}

// The row of a stretch that is not empty. If the stretch has one block alone, its row is made now.
std::array<heap_block*, granule_table::row>& granule_table::among(std::uintptr_t& s) noexcept {
  if (!is_row(s)) {
    auto* const alone = reinterpret_cast<heap_block*>(s);  // NOLINT(performance-no-int-to-ptr)
    s = ++used_ << 1 | 1;
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

// Calls each(i, whole, from, to) for each granule i that a run touches. The run has it between these
// addresses; whole: it has all of it.
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
    slab* const owner = wholes_[i];
    // Only a part of the granule leaves. The rest stays the slab's, and its slots may be looked for meanwhile.
    // So its cells are written before the whole is taken out.
    if (owner && !whole) {
      address const begin = round_down(from, granule);
      set_cells(begin, from, owner);
      set_cells(to, begin + granule, owner);
    }
    if (owner)
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
  if (p && p->at > a)
    p = nullptr;
  // The nearest block that starts in an earlier granule.
  while (!p) {
    if (i == 0)
      return nullptr;
    i = started_.last_up_to(i - 1);
    if (i == bit_tree::none)
      return nullptr;
    p = starts_.at(i);
    if (!p)
      started_.erase(i);  // none starts there any more
  }
  return a < p->at + p->bytes ? p : nullptr;
}

}  // namespace weir::memory
