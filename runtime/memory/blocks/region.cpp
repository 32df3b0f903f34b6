// The slow half of page.h: the reservation, its regions, and which block covers an address.
// Threads: as region.h.
#include "runtime/memory/blocks/region.h"

#include <algorithm>
#include <bit>

#include "runtime/memory/blocks/arena.h"
#include "runtime/memory/blocks/slab.h"

namespace weir::memory {
namespace {
constexpr std::size_t most_extents = 16384, part_of_rest = 1024;
// handles in all of the memory: the free ends of some 40 blocks cost less than 0.5 %
constexpr std::size_t ends_that_fit = 8192, largest_that_fit = 128, most_pages = 32;
}  // namespace

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
    if (known) return;
    i /= 64;
  }
}

void bit_tree::erase(std::size_t i) noexcept {
  for (auto& level : levels_) {
    level[i / 64] &= ~(std::uint64_t{1} << (i % 64));
    if (level[i / 64]) return;
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
    if (found) break;
    i /= 64;
    if (++depth == levels_.size()) return none;
  }
  std::size_t at = i / 64 * 64 + static_cast<std::size_t>(63 - std::countl_zero(found));
  while (depth > 0) {
    std::uint64_t const word = levels_[--depth][at];
    at = at * 64 + static_cast<std::size_t>(63 - std::countl_zero(word));
  }
  return at;
}

region::region(address b, std::size_t n, std::size_t page, stream_heap* o)
    : base(b),
      bytes(n),
      page_bytes(page),
      owner(o),
      runs(b + n),
      page_shift_(std::countr_zero(page)),
      pages_(n / page + 1),
      starts_(b, n / granule + 2),
      wholes_(n / granule + 2),
      slabs_(n / cell + 2),
      started_(n / granule + 2) {}

region::~region() = default;

void region::set_pages(handle const& where, handle* value) noexcept {
  for (std::size_t i = (where.at - base) / page_bytes, end = i + (where.bytes + page_bytes - 1) / page_bytes; i < end;
       ++i)
    pages_[i] = value;
}

heap_block* granule_table::at(std::size_t i) const noexcept {
  heap_block* const p = near(i);
  return !p || stretches_[i / row] & 1 || p->at / granule - first_ == i ? p : nullptr;
}

std::array<heap_block*, granule_table::row>& granule_table::among(std::uintptr_t& s) noexcept {
  if (!(s & 1)) {
    auto* const alone = reinterpret_cast<heap_block*>(s);  // NOLINT(performance-no-int-to-ptr)
    s = ++used_ << 1 | 1;
    if (alone) rows_[used_].of[(alone->at / granule - first_) % row] = alone;
  }
  return rows_[s >> 1].of;
}

// each(i, whole, from, to): of the granules that a run touches, what it has of the i-th; whole: all of it.
template <class Each>
void region::each_granule(heap_block const& p, Each each) noexcept {
  for (address at = p.at; at < p.end(); at = round_down(at, granule) + granule) {
    address const end = std::min(round_down(at, granule) + granule, p.end());
    each(index(at), end - at == granule, at, end);
  }
}

void region::enter(heap_block& p) noexcept {
  if (p.is != state::slab) return enter_block(p, p.at);
  each_granule(p, [&](std::size_t i, bool whole, address from, address to) {
    if (whole) base::store_release(wholes_[i], p.in_slab);
    else set_cells(from, to, p.in_slab);
  });
}

void region::leave(heap_block& p) noexcept {
  if (p.is != state::slab) return leave_block(p.at);
  each_granule(p, [&](std::size_t i, bool whole, address from, address to) {
    slab* const all = wholes_[i];
    if (all && !whole) {  // slots of what stays may be looked for meanwhile
      address const begin = round_down(from, granule);
      set_cells(begin, from, all);
      set_cells(to, begin + granule, all);
    }
    if (all) base::store_release<slab*>(wholes_[i], nullptr);
    else set_cells(from, to, nullptr);
  });
}

void region::set_cells(address from, address to, slab* value) noexcept {
  for (address a = from; a < to; a += cell) slabs_[cell_index(a)] = value;
}

heap_block* region::covering(address a) const noexcept {
  if (slab const* const s = slab_at(a)) return s->part_at(a);
  std::size_t i = index(a);
  heap_block* p = starts_.at(i);
  if (!p || p->at > a) {
    for (p = nullptr; !p; p = starts_.at(i)) {
      if (i == 0) return nullptr;
      std::size_t const before = started_.last_up_to(i - 1);
      if (before == bit_tree::none) return nullptr;
      if (!starts_.at(before)) started_.erase(before);
      i = before;
    }
  }
  return a < p->at + p->bytes ? p : nullptr;
}

address_space::address_space(driver::driver& m, int device) : machine_(m), device_(device) {}

address_space::~address_space() {
  if (base_ && !abandoned_) (void)machine_.unreserve(base_, reserved_);
}

driver::status address_space::open(driver::device_info const& info, std::size_t wanted) {
  info_ = info;
  page_ = info.granularity ? info.granularity : std::size_t{2} << 20;
  if (!info.maps) return {};
  std::size_t const memory = std::bit_ceil(std::max(info.total_memory, page_ * 16));
  std::size_t bytes =
      wanted ? std::max(round_up(wanted, page_), page_ * 16) : std::min(memory * 64, std::size_t{16} << 40);
  for (;; bytes = round_down(bytes / 2, page_)) {
    auto const got = machine_.reserve(bytes, page_);
    if (!got.ok() && got.is.what == driver::code::out_of_memory && bytes / 2 >= memory) continue;
    if (!got.ok()) return got.is;
    base_ = got.value;
    reserved_ = bytes;
    extent_ = std::max(std::bit_floor(bytes / most_extents), page_);
    generous_ = std::max(4 * std::bit_floor(std::min(memory / 4, bytes / 16)), extent_);
    extent_shift_ = std::countr_zero(extent_);
    extents_ = bytes / extent_;
    by_extent_.reset(new base::atomic<region*>[extents_]);
    return {};
  }
}

// The figures: docs/decisions/handle-sizes.md.
handle_sizes address_space::handles_under(std::size_t block, std::size_t reserved, std::size_t capacity,
                                          double epsilon) const noexcept {
  auto const of_block = static_cast<std::size_t>(10 * epsilon * static_cast<double>(block));
  std::size_t const most = std::max(
      reserved / ends_that_fit, std::min({of_block, capacity / ends_that_fit, reserved / largest_that_fit}));
  return {page_, std::bit_floor(std::clamp<std::size_t>(most / page_, 1, most_pages)) * page_};
}

region* address_space::take(std::size_t at_least, stream_heap& owner, std::size_t has) {
  base::lock_guard hold(lock_);
  if (!extent_) return nullptr;
  std::size_t const need = (at_least + extent_ - 1) / extent_;
  std::size_t const left = extents_ - used_, whole = generous_ / extent_;
  if (need > left) return nullptr;
  // Generous while there is plenty: an arena of one region has the fewest seams. Then as much again as the
  // stream has, and at first a small part of what is left:
  // thousands of streams find room, and one that grows has few regions all the same.
  std::size_t const wanted =
      left > extents_ / 2 ? whole : std::max({has / extent_, left / part_of_rest, std::size_t{1}});
  std::size_t const n = std::max(need, std::min({left, whole, wanted}));
  regions_.push_back(std::make_unique<region>(base_ + used_ * extent_, n * extent_, page_, &owner));
  region* const made = regions_.back().get();
  if (address const runs = made->base + round_down(made->bytes / 4 * 3, page_);
      n > need && runs - made->base >= at_least)
    made->runs = runs;
  for (std::size_t i = used_; i < used_ + n; ++i) by_extent_[i].store(made, base::memory_order_release);
  used_ += n;
  return made;
}

region* address_space::adopt_segment(address at, std::size_t bytes, stream_heap& owner) {
  base::lock_guard hold(lock_);
  auto made = std::make_unique<region>(at, bytes, page_, &owner);
  dropped_.reserve(most_dropped);  // so that dropping never allocates
  region* const plain = made.get();
  segments_[at] = std::move(made);
  return plain;
}

address_space::segment address_space::set_aside(region const& r) noexcept {
  base::lock_guard hold(lock_);
  return segments_.extract(r.base);
}

void address_space::put_back(segment&& s) noexcept {
  base::lock_guard hold(lock_);
  segments_.insert(std::move(s));
}

void address_space::drop(segment&& s) noexcept {
  base::lock_guard hold(lock_);
  if (dropped_.size() == most_dropped) dropped_.erase(dropped_.begin());
  dropped_.push_back(std::move(s.mapped()));
}

region* address_space::find(void const* p) const noexcept {
  auto const a = reinterpret_cast<address>(p);
  if (base_) {
    std::size_t const offset = a - base_;
    return offset < extents_ << extent_shift_ ? by_extent_[offset >> extent_shift_].load(base::memory_order_acquire)
                                              : nullptr;
  }
  base::lock_guard hold(lock_);
  auto after = segments_.upper_bound(a);
  if (after == segments_.begin()) return nullptr;
  region* const r = std::prev(after)->second.get();
  return a - r->base < r->bytes ? r : nullptr;
}

}  // namespace weir::memory
