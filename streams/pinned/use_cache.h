// A thread's cache of pinned blocks that it copies repeatedly: lookup and mark cost a few loads.
// Threads: a pinned_uses belongs to one. Any copying thread writes a pinned_use; it is read under the pool's
// lock.
//
// Invariant: an entry is valid while the version of the process's pinned memory is the same. A free changes
// the version first.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/byte_range.h"
#include "runtime/clock/stream_clock.h"

namespace weir::streams {

class pinned_memory;

// The newest exact use of a block by one stream. Its address is stable for the life of its pool.
struct pinned_use {
  base::atomic<std::uint64_t> stream{0};  // written under the pool's lock; belongs to one block until its free
  base::atomic<std::uint64_t> n{0};
};

struct pinned_spot {
  driver::address base = 0;
  std::size_t bytes = 0;  // as requested; 0: none
  std::uint64_t stream = 0;
  pinned_memory* of = nullptr;
  pinned_use* last = nullptr;  // by that stream

  bool holds(driver::address at, std::size_t n) const noexcept {
    return weir::base::byte_range{base, bytes}.holds(at, n);
  }
};

class pinned_uses {
 public:
  static base::atomic<std::uint64_t>& version() noexcept { return version_; }  // of all pinned memory of the process

  // Null: not cached. Compares identity, not addresses: a seeded run is the same in every process.
  pinned_spot const* find(pinned_memory const* of, std::uint64_t stream, driver::address at,
                          std::size_t bytes) noexcept {
    if (seen_ != version_.load(base::memory_order_acquire))
      return nullptr;
    for (pinned_spot const& one : all_)
      if (one.holds(at, bytes) && one.stream == stream && one.of == of)
        return &one;
    return nullptr;
  }
  // Requires: version was read before the block was looked up.
  pinned_spot const* remember(pinned_spot const& spot, std::uint64_t version) noexcept {
    if (seen_ != version)
      all_ = {}, seen_ = version, next_ = 0;
    return &(all_[next_++ % all_.size()] = spot);
  }

 private:
  static inline constinit base::atomic<std::uint64_t> version_{1};
  std::uint64_t seen_ = 0;
  std::size_t next_ = 0;
  std::array<pinned_spot, 8> all_{};  // last, so that its first entry shares a cache line with the members above
};

}  // namespace weir::streams
