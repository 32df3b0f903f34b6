// The reservation of a device, its regions, and how large the handles are.
// Threads: as address_space.h.
#include "runtime/memory/space/address_space.h"

#include <algorithm>
#include <bit>

namespace weir::memory {
namespace {
constexpr std::size_t most_extents = 16384, part_of_rest = 1024;
// The most of one handle: what is reserved, or the capacity, divided by this.
struct handle_parts {
  std::size_t of_reserved, of_capacity;
};
// The free ends of some 40 blocks cost less than 0.5 % of the memory.
constexpr handle_parts where_room_is_short{8192, 8192};
// Handles that are made while less than an eighth is reserved cost little of what a full device lacks later.
constexpr handle_parts where_there_is_room{256, 4096};
constexpr std::size_t part_with_room = 8;  // of the capacity: there is room while less is reserved
constexpr std::size_t part_of_all = 32;    // of what is reserved: the most of one handle
constexpr std::size_t most_pages = 32;     // of a handle
}  // namespace

address_space::address_space(driver::driver& m, int device) : machine_(m), device_(device) {}

address_space::~address_space() {
  if (base_ && !abandoned_)
    (void)machine_.unreserve(base_, reserved_);
}

driver::status address_space::open(driver::device_info const& info, std::size_t wanted) {
  info_ = info;
  page_ = info.granularity ? info.granularity : std::size_t{2} << 20;
  if (!info.maps)
    return {};
  std::size_t const memory = std::bit_ceil(std::max(info.total_memory, page_ * 16));
  std::size_t bytes =
      wanted ? std::max(round_up(wanted, page_), page_ * 16) : std::min(memory * 64, std::size_t{16} << 40);
  for (;; bytes = round_down(bytes / 2, page_)) {
    std::size_t const extent = std::max(std::bit_floor(bytes / most_extents), page_);
    // Made first: without host memory for it nothing is reserved.
    decltype(by_extent_) table(new base::atomic<region*>[bytes / extent]);
    auto const got = machine_.reserve(bytes, page_);
    bool const half_would_do = bytes / 2 >= memory;
    if (!got.ok() && got.is.what == driver::code::out_of_memory && half_would_do)
      continue;
    if (!got.ok())
      return got.is;
    base_ = got.value;
    reserved_ = bytes;
    extent_ = extent;
    // As much as the device has, and a quarter of the addresses at most.
    generous_ = std::max(std::bit_floor(std::min(memory, bytes / 4)), extent_);
    extent_shift_ = std::countr_zero(extent_);
    extents_ = bytes / extent_;
    by_extent_ = std::move(table);
    return {};
  }
}

// The figures: docs/decisions/handle-sizes.md.
handle_sizes address_space::handles_under(std::size_t block, std::size_t reserved, std::size_t capacity,
                                          double epsilon) const noexcept {
  auto const of_block = static_cast<std::size_t>(10 * epsilon * static_cast<double>(block));
  handle_parts const& parts = reserved < capacity / part_with_room ? where_there_is_room : where_room_is_short;
  std::size_t const for_block = std::min({of_block, capacity / parts.of_capacity, reserved / part_of_all});
  std::size_t const most = std::max(reserved / parts.of_reserved, for_block);
  return {.page = page_, .most = std::bit_floor(std::clamp<std::size_t>(most / page_, 1, most_pages)) * page_};
}

region* address_space::take(std::size_t at_least, stream_heap& owner, std::size_t has) {
  base::lock_guard hold(lock_);
  if (!extent_)
    return nullptr;
  std::size_t const need = (at_least + extent_ - 1) / extent_;
  std::size_t const left = extents_ - used_, most = generous_ / extent_;
  if (need > left)
    return nullptr;
  // Generous while there is plenty: an arena of one region has the fewest seams.
  std::size_t wanted = most;
  // Once half is taken: as much again as the owner has, and at first a small part of what is left. So
  // thousands of streams find room, and one that grows has few regions all the same.
  if (left <= extents_ / 2)
    wanted = std::max({has / extent_, left / part_of_rest, std::size_t{1}});
  std::size_t const n = std::max(need, std::min({left, most, wanted}));
  regions_.push_back(std::make_unique<region>(base_ + used_ * extent_, n * extent_, page_, &owner));
  region* const made = regions_.back().get();
  // The upper quarter is for runs of slabs. A region that is no larger than it has to be has no such part,
  // nor one whose first block would reach into it.
  address const upper = made->base + round_down(made->bytes / 4 * 3, page_);
  if (n > need && upper - made->base >= at_least)
    made->runs = upper;
  for (std::size_t i = used_; i < used_ + n; ++i)
    by_extent_[i].store(made, base::memory_order_release);
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
  if (dropped_.size() == most_dropped)
    dropped_.erase(dropped_.begin());
  dropped_.push_back(std::move(s.mapped()));
}

region* address_space::find(void const* p) const noexcept {
  auto const a = reinterpret_cast<address>(p);
  if (base_) {
    std::size_t const offset = a - base_;
    return offset < bytes() ? by_extent_[offset >> extent_shift_].load(base::memory_order_acquire) : nullptr;
  }
  base::lock_guard hold(lock_);
  auto after = segments_.upper_bound(a);
  if (after == segments_.begin())
    return nullptr;
  region* const r = std::prev(after)->second.get();
  return a - r->base < r->bytes ? r : nullptr;
}

}  // namespace weir::memory
