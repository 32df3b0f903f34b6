// Numbers in a row that answer "the first of at least v, from here on" in a few steps: where the lowest large piece begins.
// Threads: guarded by the lock of the stream_memory whose region it belongs to.
//
// Invariant: every number above the lowest row is at least the largest of the sixteen below it. One that is more is lowered by the
// search that it led astray: blocks that come and go at one place change the lowest row alone.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "runtime/memory/sparse_array.h"

namespace weir::memory {

class lowest_fit {
 public:
  static constexpr std::size_t none = ~std::size_t{0};
  explicit lowest_fit(std::size_t n) {
    do {
      n = (n + fan - 1) / fan;
      rows_.push_back({sparse_array<std::uint32_t>(n * fan), n * fan});
    } while (n > 1);
  }
  std::uint32_t at(std::size_t i) const noexcept { return rows_[0].of[i]; }
  void set(std::size_t i, std::uint32_t v) noexcept {
    rows_[0].of[i] = v;
    for (int k = std::bit_width(v) - 1; k >= 0 && floors_[static_cast<std::size_t>(k)] > i; --k) floors_[static_cast<std::size_t>(k)] = i;
    for (std::size_t row = 1; row < rows_.size(); ++row) {
      std::uint32_t& most = rows_[row].of[i /= fan];
      if (most >= v) return;
      most = v;
    }
  }
  // Requires: v > 0
  std::size_t find(std::uint32_t v, std::size_t from) noexcept {
    auto const k = static_cast<std::size_t>(std::bit_width(v) - 1);
    if (from > floors_[k]) return search(v, from);
    std::size_t const first = search(std::uint32_t{1} << k, floors_[k]);
    for (std::size_t above = k; above < floors_.size() && floors_[above] < first; ++above) floors_[above] = first;
    return first == none || at(first) >= v ? first : search(v, first + 1);
  }

 private:
  std::size_t search(std::uint32_t v, std::size_t i) noexcept {
    std::size_t row = 0;
    if (i < rows_[0].size && rows_[0].of[i] >= v) return i;
    while (i < rows_[row].size) {
      std::size_t const group = i / fan * fan;
      unsigned const found = reaching(&rows_[row].of[group], v) >> (i - group);
      if (found) {
        i += static_cast<std::size_t>(std::countr_zero(found));
        if (row == 0) return i;
        --row, i *= fan;  // down, to the first of them
        continue;
      }
      if (++row == rows_.size()) return none;
      if (i == group) rows_[row].of[group / fan] = largest(&rows_[row - 1].of[group]);
      i = group / fan + 1;  // up, and on behind this group
    }
    return none;
  }
  static constexpr std::size_t fan_bits = 4, fan = 1 << fan_bits;  // a cache line
  using four = std::uint32_t __attribute__((vector_size(16)));
  static four read(std::uint32_t const* at) noexcept {
    four some;
    std::memcpy(&some, at, sizeof some);
    return some;
  }
  // Which of a group's are at least v, a bit each: all sixteen at once, so that nothing hangs on guessing where they are.
  static unsigned reaching(std::uint32_t const* group, std::uint32_t v) noexcept {
    constexpr four bits = {1, 2, 4, 8};
    four const all = ((read(group) >= v) & bits) | ((read(group + 4) >= v) & (bits << 4)) | ((read(group + 8) >= v) & (bits << 8)) | ((read(group + 12) >= v) & (bits << 12));
    std::uint64_t halves[2];
    std::memcpy(halves, &all, sizeof halves);
    std::uint64_t const both = halves[0] | halves[1];
    return static_cast<unsigned>(both | both >> 32);
  }
  static std::uint32_t largest(std::uint32_t const* group) noexcept {
    auto const larger = [](four a, four b) { return a > b ? a : b; };
    four const most = larger(larger(read(group), read(group + 4)), larger(read(group + 8), read(group + 12)));
    return std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  }
  static std::array<std::size_t, 32> filled() noexcept {
    std::array<std::size_t, 32> all;
    all.fill(none);
    return all;
  }
  struct row_of {
    sparse_array<std::uint32_t> of;
    std::size_t size;
  };
  std::vector<row_of> rows_;
  std::array<std::size_t, 32> floors_ = filled();  // below floors_[k] there is none of at least 2^k; they rise with k
};

}  // namespace weir::memory
