// Addresses of one device: one reservation, cut into regions.
// Threads: any.
//
// Invariant: an address has one owner: region = by_extent[(address - base) / extent], found by subtraction.
#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/blocks/region.h"

namespace weir::memory {

// How large the handles under a block are.
struct handle_sizes {
  std::size_t page = 0, most = 0;  // bytes
  std::size_t last = 0;            // bytes: a rest of so much is one handle. 0: handles are powers of two of pages

  // Bytes of the next one, where `left` are missing. Requires: left is pages.
  std::size_t next(std::size_t left) const noexcept {
    if (last)
      return left <= last ? left : most;
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
  // For a block of `block` bytes, on a device with `reserved` bytes that may reserve `capacity`. A handle
  // stays mapped while a part of it is in use, so the blocks at its ends waste up to its size. A handle has 1
  // to 32 pages. It is at most the larger of two. One is 1/8192 of what is reserved. The other is the least
  // of 10 `epsilon` of its block, 1/8192 of the capacity and 1/32 of what is reserved. While less than an
  // eighth of the capacity is reserved, it may be 1/256 of what is reserved, and 1/4096 of the capacity.
  handle_sizes handles_under(std::size_t block, std::size_t reserved, std::size_t capacity,
                             double epsilon) const noexcept;
  // Where none is moved and each costs as much again for every peer:
  // as few as can be, up to 128 pages, 256 MiB on GPUs.
  handle_sizes handles_that_stay() const noexcept { return {.page = page_, .most = 128 * page_, .last = 128 * page_}; }
  driver::device_info const& info() const noexcept { return info_; }

  // Null: no addresses left. `has`: bytes of addresses that the owner has already.
  region* take(std::size_t at_least, stream_heap& owner, std::size_t has = 0);
  region* adopt_segment(address, std::size_t bytes, stream_heap& owner);
  // A segment leaves all tables before the driver gets it: its addresses may come back at once, to another thread.
  using segment = std::map<address, std::unique_ptr<region>>::node_type;
  segment set_aside(region const&) noexcept;
  void put_back(segment&&) noexcept;  // the driver would not take it
  void drop(segment&&) noexcept;
  // Threads: any, without a lock where the device maps.
  region* find(void const*) const noexcept;
  address base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return extents_ << extent_shift_; }
  void abandon() noexcept { abandoned_ = true; }  // memory is still in use: the reservation stays

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
  std::vector<std::unique_ptr<region>> regions_;         // under lock_
  std::map<address, std::unique_ptr<region>> segments_;  // under lock_; by base
  static constexpr std::size_t most_dropped = 64;
  std::vector<std::unique_ptr<region>> dropped_;  // under lock_; the last few: another thread may still read them
};

}  // namespace weir::memory
