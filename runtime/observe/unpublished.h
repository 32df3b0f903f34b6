// What a thread's cache took and gave back since its memory's tally was last told: blocks, bytes and bytes as
// asked for, in one word, so that a call pays for one addition and one comparison.
// Threads: a word is written by the cache's thread, or by one that has shut the cache;
// the tally says the rest.
//
// Invariant: while no call answers `passed`, no level has risen by more than was granted,
// and the bytes have not fallen by more.
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
struct grant {  // how far each may go until the tally is told
  change up;
  std::int64_t down_bytes = 0;
};

class unpublished {
 public:
  static constexpr std::int64_t most_bytes = (1 << 22) - 1, most_blocks = (1 << 14) - 1;  // no grant is larger
  static constexpr std::uint64_t cost(std::uint64_t size) noexcept {
    return size << bytes_shift | std::uint64_t{1} << blocks_shift | size;
  }
  // cost: of the slot, less what of it was not asked for. True:
  // a grant is passed, and the owner tells the tally before its call ends.
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
  // All since the last call. Nothing is granted from here on: the next call passes.
  change take() noexcept {
    change const now = since();
    carried_ = {};
    set({}, false);
    return now;
  }
  void allow(grant const& g) noexcept { set(g, true); }      // Requires: take() was the last call
  void allow_all() noexcept {                                // nobody needs to know
    carried_ += since();
    set({{most_blocks, most_bytes, most_bytes}, most_bytes}, true);
  }
  void forget() noexcept {
    carried_ = {};
    set({}, false);
  }

 private:
  // Each number has a bit above it that says that it has passed. What a cache and its outbox can hold, which
  // is what bytes and blocks may change by between two tellings, fits in below any grant. What was asked for
  // has no such bound: one that fell below 0 sets its upper bits.
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
    if (requested >= all / 4 * 3) requested -= all;
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
  std::uint64_t floor_ = 0;     // gave() passes below it
  std::uint64_t base_ = 0;      // the word when it was last set
  bool granted_ = false;
  change carried_;              // of times when all was allowed
};

}  // namespace weir::observe
