// The heaps of a device's streams, and which may serve others: a bit a heap in the row of its largest block.
// Threads: any, without a lock. The holder of a heap's lock changes its bits. Heaps are added one by one.
//
// Invariant: a heap is listed in the row of its arena's largest free or pending block, or in a higher row; in
// `whole` if a free block may contain a whole handle; in `waits` exactly if a block is pending. The thread
// that owns a heap's lock does not update the rows, so such a heap is listed by all its mapped bytes.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/rule.h"
#include "runtime/base/sync.h"

namespace weir::memory {

class stream_heap;

class heap_index {
 public:
  using rows = std::uint32_t;  // a bit each
  // up to this number each heap is visited, listed or not: the visit notes that a stream has looked there
  static constexpr std::size_t few = 16;
  static constexpr int sizes = 20;
  static constexpr std::size_t smallest = 32 << 10;  // bytes, of row 0; each next row doubles
  static constexpr rows whole_handle = rows{1} << sizes, waits = whole_handle << 1;

  static rows of_size(std::size_t largest) noexcept { return largest < smallest ? 0 : rows{1} << row(largest); }
  static rows at_least(std::size_t bytes) noexcept { return (whole_handle - 1) & (~rows{0} << row(bytes)); }

  std::size_t size() const noexcept { return size_.load(base::memory_order_acquire); }
  bool many() const noexcept { return size() > few; }
  stream_heap& operator[](std::size_t number) const noexcept {
    return *group_of(number / 64).memories[number % 64].load(base::memory_order_acquire);
  }
  // Threads: one call at a time. Throws: bad_alloc
  void make_room() {
    place const at(size() / 64);
    if (groups_[at.block].load())  // the array of the next heap's group is there
      return;
    made_.reserve(made_.size() + 1);
    made_.push_back(std::make_unique<group[]>(std::size_t{1} << at.block));
    groups_[at.block].store(made_.back().get(), base::memory_order_release);
  }
  void add(stream_heap& m) noexcept {  // Requires: its number is size(); room
    std::size_t const n = size();
    group_of(n / 64).memories[n % 64].store(&m, base::memory_order_release);
    size_.store(n + 1, base::memory_order_release);
  }
  // Requires: the lock of the heap with that number, which is listed in `was`.
  void list(std::size_t number, rows was, rows now) noexcept {
    group& g = group_of(number / 64);
    std::uint64_t const bit = std::uint64_t{1} << (number % 64);
    for (rows left = was ^ now; left; left &= left - 1) {
      auto const row_number = static_cast<std::size_t>(std::countr_zero(left));
      auto& word = g.bits[row_number];
      bool const enters = (now >> row_number & 1) != 0;
      WEIR_RULE(((word.seen() & bit) == 0) == enters, "its row in the heap index differs from its own copy");
      if (enters)
        word.fetch_add(bit, base::memory_order_release);  // the bit was clear
      else
        word.fetch_sub(bit, base::memory_order_release);
    }
  }
  rows listed(std::size_t number) const noexcept {
    rows all = 0;
    for (std::size_t r = 0; r < group_of(number / 64).bits.size(); ++r) {
      all |= static_cast<rows>(group_of(number / 64).bits[r].load(base::memory_order_acquire) >> (number % 64) & 1)
             << r;
    }
    return all;
  }

  template <class Do>
  void each(Do act) const {
    visit(~rows{0}, 0, size(), true, [&](stream_heap& m) { return act(m), false; });
  }
  // The heaps listed in one of `in`, beginning at number `from` (modulo their number), until one is `enough`.
  template <class Enough>
  void some(rows in, std::size_t from, Enough enough) const {
    std::size_t const n = size();
    if (n == 0)
      return;
    from %= n;
    bool const listed_or_not = n <= few;
    if (!visit(in, from, n, listed_or_not, enough))
      (void)visit(in, 0, from, listed_or_not, enough);
  }
  bool any(rows in) const noexcept {
    bool found = false;
    std::size_t const n = size();
    for (std::size_t w = 0; w * 64 < n && !found; ++w)
      found = group_of(w).word(in) != 0;
    return found;
  }

 private:
  struct group {
    std::array<base::atomic<std::uint64_t>, sizes + 2> bits{};
    std::array<base::atomic<stream_heap*>, 64> memories{};
    std::uint64_t word(rows in) const noexcept {
      std::uint64_t all = 0;
      for (; in; in &= in - 1)
        all |= bits[static_cast<std::size_t>(std::countr_zero(in))].load(base::memory_order_acquire);
      return all;
    }
  };
  struct place {  // of a group: arrays of 1, 2, 4, ... groups, which never move
    explicit place(std::size_t w) noexcept
        : block(static_cast<std::size_t>(std::bit_width(w + 1) - 1)), index(w + 1 - (std::size_t{1} << block)) {}
    std::size_t block, index;
  };
  static int row(std::size_t bytes) noexcept {
    int const r = std::bit_width(bytes / smallest) - 1;
    return r < 0 ? 0 : r < sizes ? r : sizes - 1;
  }
  group& group_of(std::size_t w) const noexcept {
    place const at(w);
    return groups_[at.block].load(base::memory_order_acquire)[at.index];
  }
  // Numbers from `from` up to `to`, those listed in one of `in` or all. Returns: whether one was enough
  template <class Enough>
  bool visit(rows in, std::size_t from, std::size_t to, bool listed_or_not, Enough enough) const {
    for (std::size_t w = from / 64; w * 64 < to; ++w) {
      group const& g = group_of(w);
      std::uint64_t word = listed_or_not ? ~std::uint64_t{0} : g.word(in);
      // The first and the last group may lie in the range in part.
      if (from > w * 64)
        word &= ~std::uint64_t{0} << (from - w * 64);
      if (to - w * 64 < 64)
        word &= (std::uint64_t{1} << (to - w * 64)) - 1;
      for (; word; word &= word - 1) {
        if (enough(*g.memories[static_cast<std::size_t>(std::countr_zero(word))].load(base::memory_order_acquire)))
          return true;
      }
    }
    return false;
  }

  std::array<base::atomic<group*>, 32> groups_{};
  std::vector<std::unique_ptr<group[]>> made_;
  base::atomic<std::size_t> size_{0};
};

}  // namespace weir::memory
