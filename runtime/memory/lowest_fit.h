// Numbers in a row that answer "the first of at least v, from here on" in a few steps: where the lowest large piece begins.
// Threads: guarded by the lock of the stream_memory whose region it belongs to.
//
// Invariant: every number above the lowest row is at least the largest of the sixteen below it. One that is more is lowered by the
// search that it led astray: blocks that come and go at one place change the lowest row alone.
#pragma once
#include <algorithm>

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
    for (std::size_t row = 1; row < rows_.size(); ++row) {
      std::uint32_t& most = rows_[row].of[i /= fan];
      if (most >= v) return;
      most = v;
    }
  }
  // Requires: v > 0
  std::size_t find(std::uint32_t v, std::size_t from) noexcept {
    std::size_t row = 0, i = from;
    while (i < rows_[row].size) {
      std::size_t const group = i / fan * fan, end = group + fan;
      std::uint32_t* const of = &rows_[row].of[0];
      bool const whole = i == group;
      while (i < end && of[i] < v) ++i;
      if (i < end) {
        if (row == 0) return i;
        --row, i *= fan;  // down, to the first of them
        continue;
      }
      if (++row == rows_.size()) return none;
      i = group / fan;  // up, and on behind this group
      if (whole) rows_[row].of[i] = *std::max_element(of + group, of + end);
      ++i;
    }
    return none;
  }

 private:
  static constexpr std::size_t fan = 16;  // a cache line
  struct row_of {
    sparse_array<std::uint32_t> of;
    std::size_t size;
  };
  std::vector<row_of> rows_;
};

}  // namespace weir::memory
