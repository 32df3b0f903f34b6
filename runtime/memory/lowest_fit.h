// Numbers in a row that answer "the first of at least v, from here on" in a few steps: where the lowest large piece begins.
// Threads: guarded by the lock of the stream_memory whose region it belongs to.
//
// Invariant: every number above the lowest row is the largest of the sixteen below it.
#pragma once
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
      std::size_t const group = i / fan * fan;
      std::uint32_t most = 0;
      for (std::size_t k = group; k < group + fan; ++k) most = std::max(most, rows_[row - 1].of[k]);
      i /= fan;
      if (rows_[row].of[i] == most) return;
      rows_[row].of[i] = most;
    }
  }
  // Requires: v > 0
  std::size_t find(std::uint32_t v, std::size_t from) const noexcept {
    std::size_t row = 0, i = from;
    for (;; ++row, i /= fan) {  // up, until a group's rest holds one
      if (row == rows_.size() || i >= rows_[row].size) return none;
      std::size_t const end = i / fan * fan + fan;
      while (i < end && rows_[row].of[i] < v) ++i;
      if (i < end) break;
    }
    while (row > 0) {  // down again, to the first
      --row;
      i *= fan;
      while (rows_[row].of[i] < v) ++i;
    }
    return i;
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
