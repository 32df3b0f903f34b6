// A thread cache's changes since its last report to heap_counters: blocks, bytes and requested bytes, in one
// word.
// Threads: the cache's thread writes the word, or a thread that has closed the cache; for the rest see heap_counters.
//
// Invariant: while no call reports `passed`, no level rises, and no bytes fall, by more than the grant.
#pragma once
#include <algorithm>
#include <cstdint>

#include "runtime/base/sync.h"

namespace weir::observe {

struct change {
  std::int64_t blocks = 0, bytes = 0, requested = 0;
  change& operator+=(change const& o) noexcept {
    return blocks += o.blocks, bytes += o.bytes, requested += o.requested, *this;
  }
};
struct grant {  // how far each may change until the next report
  change up;
  std::int64_t down_bytes = 0;
};

class unpublished {
 public:
  static constexpr std::int64_t most_bytes = (1 << 22) - 1, most_blocks = (1 << 14) - 1;  // limits of a grant
  static constexpr std::uint64_t cost(std::uint64_t size) noexcept {
    return size << bytes_shift | std::uint64_t{1} << blocks_shift | size;
  }
  // cost: of the slot, less its unrequested bytes. True: past the grant; the owner reports in this call.
  [[gnu::always_inline]] bool took(std::uint64_t cost) noexcept {
    std::uint64_t const now = word_.get() + cost;
    word_.set(now);
    return (now & passed) != 0;
  }
  [[gnu::always_inline]] bool gave(std::uint64_t cost) noexcept {
    std::uint64_t const now = word_.get() - cost;
    word_.set(now);
    return now < floor_;
  }
  bool granted() const noexcept { return granted_; }
  // The changes since the last call. Ends the grant: the next took() or gave() passes.
  change take() noexcept {
    change const now = since();
    carried_ = {};
    set({}, false);
    return now;
  }
  void allow(grant const& g) noexcept { set(g, true); }  // Requires: take() was the last call
  void allow_all() noexcept {                            // no report is needed
    carried_ += since();
    set({{most_blocks, most_bytes, most_bytes}, most_bytes}, true);
  }
  void forget() noexcept {
    carried_ = {};
    set({}, false);
  }

 private:
  // Each number has a bit above it that shows when it has passed. Bytes and blocks change between two reports
  // by at most what a cache and its deferred frees hold, which fits below any grant. Requested bytes have no
  // such bound: a value below 0 sets their upper bits.
  static constexpr int bits_of_bytes = 24, bits_of_blocks = 16, blocks_shift = bits_of_bytes,
                       bytes_shift = blocks_shift + bits_of_blocks;
  static constexpr std::uint64_t top_bytes = (std::uint64_t{1} << (bits_of_bytes - 1)) - 1,
                                 top_blocks = (std::uint64_t{1} << (bits_of_blocks - 1)) - 1;
  static_assert(most_bytes == top_bytes / 2 && most_blocks == top_blocks / 2);
  static constexpr std::uint64_t passed =
      (top_bytes + 1) << bytes_shift | (top_blocks + 1) << blocks_shift | (top_bytes + 1);
  static change read(std::uint64_t word) noexcept {
    constexpr std::int64_t all = std::int64_t{1} << bits_of_bytes;
    auto requested = static_cast<std::int64_t>(word & (all - 1));
    // Below 0: it has borrowed from the blocks above, which get it back.
    if (requested >= all / 4 * 3)
      requested -= all;
    word = (word - static_cast<std::uint64_t>(requested)) >> blocks_shift;
    return {static_cast<std::int64_t>(word & ((1u << bits_of_blocks) - 1)),
            static_cast<std::int64_t>(word >> bits_of_blocks), requested};
  }
  change since() const noexcept {
    change const now = read(word_.get()), then = read(base_);
    change out = carried_;
    return out += {now.blocks - then.blocks, now.bytes - then.bytes, now.requested - then.requested};
  }
  void set(grant const& g, bool granted) noexcept {
    // The word starts as far below each bit of `passed` as that number may rise.
    auto const below = [](std::uint64_t top, std::int64_t headroom, std::int64_t most) {
      return top - static_cast<std::uint64_t>(std::clamp<std::int64_t>(headroom, 0, most));
    };
    std::uint64_t const bytes = below(top_bytes, g.up.bytes, most_bytes);
    base_ = bytes << bytes_shift | below(top_blocks, g.up.blocks, most_blocks) << blocks_shift |
            below(top_bytes, g.up.requested, most_bytes);
    word_.set(base_);
    floor_ = (bytes - static_cast<std::uint64_t>(std::clamp<std::int64_t>(g.down_bytes, 0, most_bytes))) << bytes_shift;
    granted_ = granted;
  }

  base::single_writer<std::uint64_t> word_;
  std::uint64_t floor_ = 0;  // gave() passes below it
  std::uint64_t base_ = 0;   // the word when it was last set
  bool granted_ = false;
  change carried_;  // changes while everything was allowed
};

}  // namespace weir::observe
