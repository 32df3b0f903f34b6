// The free blocks that contain whole handles, which can be moved or released: by size, by age and by address.
// Threads: guarded by the lock of the stream_heap that owns the arena.
//
// A new or changed block is only noted. Its whole handles are looked up when some are needed, so that an
// allocation or a free costs a link or two. Stamps of one stream complete in order, so the oldest block is
// the first that may be released.
// Invariant: a free block of a page and more is noted, or unsorted and large, or listed by `span`, by age and
// by address, or was found to contain no whole handle.
#pragma once
#include "runtime/memory/blocks/heap_block.h"

namespace weir::memory {

// The next handle that lies wholly inside the block; null: none.
inline handle const* next_whole(heap_block const& p, handle const& after) noexcept {
  address const at = after.at + after.bytes;
  if (at >= p.end())
    return nullptr;
  handle const* const h = p.in->page(at);
  return h->at + h->bytes <= p.end() ? h : nullptr;
}
inline handle const* first_whole(heap_block const& p) noexcept {
  handle const* const h = p.in->page(p.at);
  if (h->at < p.at)  // it begins before the block
    return next_whole(p, *h);
  return h->at + h->bytes <= p.end() ? h : nullptr;
}
inline handle const* previous_whole(heap_block const& p, handle const& before) noexcept {
  if (before.at <= p.at)
    return nullptr;
  handle const* const h = p.in->page(before.at - 1);
  return h->at >= p.at ? h : nullptr;
}
inline handle const* last_whole(heap_block const& p) noexcept {
  handle const* const h = p.in->page(p.end() - 1);
  if (h->at + h->bytes > p.end())  // it ends behind the block
    return previous_whole(p, *h);
  return h->at >= p.at ? h : nullptr;
}
inline std::size_t bytes_whole(heap_block const& p) noexcept {
  handle const* const first = first_whole(p);
  if (!first)
    return 0;
  // Handles lie side by side: up to the end of the last whole one.
  handle const* const last = p.in->page(p.end() - 1);
  return (last->at + last->bytes <= p.end() ? p.end() : last->at) - first->at;
}

class whole_handle_index {
 public:
  static bool concerns(heap_block const& p) noexcept { return p.bytes >= p.in->page_bytes; }
  void insert(heap_block& p, bool large) noexcept {  // large: lowest_fit.h has it, and arena calls sort()
    WEIR_RULE(p.sorted == heap_block::index_state::no, "the whole-handle index has the wrong state of a free block");
    if (!concerns(p))
      return;
    if (large) {
      p.sorted = heap_block::index_state::unsorted;
      ++unsorted_;
      return;
    }
    p.sorted = heap_block::index_state::noted;
    p.span_before = nullptr;
    p.span_after = newest_noted_;
    (newest_noted_ ? newest_noted_->span_before : oldest_noted_) = &p;
    newest_noted_ = &p;
  }
  void erase(heap_block& p) noexcept {
    if (p.sorted == heap_block::index_state::noted) {
      (p.span_before ? p.span_before->span_after : newest_noted_) = p.span_after;
      (p.span_after ? p.span_after->span_before : oldest_noted_) = p.span_before;
    } else if (p.sorted == heap_block::index_state::listed) {
      by_size_.erase(p);
      by_age_.erase(by_age_.iterator_to(p));
      by_place_.erase(p);
    } else if (p.sorted == heap_block::index_state::unsorted) {
      WEIR_RULE(unsorted_ > 0, "the count of unsorted large blocks is wrong");
      --unsorted_;
    }
    p.sorted = heap_block::index_state::no;
  }
  // Before a block changes its range or its stamp. A block that is only noted stays so.
  void before_change(heap_block& p) noexcept {
    if (p.sorted == heap_block::index_state::listed || p.sorted == heap_block::index_state::none_inside)
      erase(p);
  }
  void after_change(heap_block& p, bool large) noexcept {
    // It is looked up at the next search anyway.
    auto const not_looked_up = large ? heap_block::index_state::unsorted : heap_block::index_state::noted;
    if (p.sorted == not_looked_up && concerns(p))
      return;
    erase(p);
    insert(p, large);
  }
  // Looks its whole handles up.
  void sort(heap_block& p) noexcept {
    erase(p);
    p.span = bytes_whole(p);
    p.sorted = p.span ? heap_block::index_state::listed : heap_block::index_state::none_inside;
    if (!p.span)
      return;
    by_size_.insert(p);
    by_age_.insert(p);
    by_place_.insert(p);
  }
  // From the smallest up, until `enough(block)` or `looks` blocks.
  template <class Enough>
  void smallest(Enough enough, int looks) {
    sort();
    by_size_.look(0, enough, looks);
  }
  // From the oldest up, until `enough(block)`, which may erase its block.
  template <class Enough>
  void oldest(Enough enough) {
    sort();
    for (auto at = by_age_.begin(); at != by_age_.end();) {
      heap_block& p = *at++;
      if (enough(p))
        return;
    }
  }
  // From the lowest address up, likewise. Free stamps depend on what was queried, addresses do not.
  template <class Enough>
  void lowest(Enough enough) {
    sort();
    by_place_.lowest(enough);
  }
  template <class Enough>
  void highest(Enough enough) {  // from the highest address down; may not erase its block
    sort();
    by_place_.highest(enough);
  }
  // The free block that contains the whole handle; null: part of it is in use or reserved.
  heap_block* around(handle const& h) noexcept {
    sort();
    return by_place_.around(h.at, h.bytes);
  }
  std::size_t listed() const noexcept { return by_size_.size(); }
  std::size_t unsorted() const noexcept { return unsorted_; }  // large blocks that sort() has not seen

 private:
  void sort() noexcept {
    while (oldest_noted_)
      sort(*oldest_noted_);  // the newest comes last, and so is found first
  }
  struct older {
    bool operator()(heap_block const& a, heap_block const& b) const noexcept { return a.freed < b.freed; }
  };
  heap_block* newest_noted_ = nullptr;
  heap_block* oldest_noted_ = nullptr;
  std::size_t unsorted_ = 0;
  bins_by<by_span> by_size_;
  boost::intrusive::multiset<heap_block, boost::intrusive::member_hook<heap_block, heap_block::hook, &heap_block::age>,
                             boost::intrusive::compare<older>, boost::intrusive::constant_time_size<false>>
      by_age_;
  blocks_by_address by_place_;
};

}  // namespace weir::memory
