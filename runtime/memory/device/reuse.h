// Reuse of mapped memory that other streams used, cheapest first: ordered, found complete by a query, behind
// a device wait. docs/decisions/reuse.md gives the reasons.
// Threads: any. No lock is held over a driver call but NVTX notices.
//
// Invariant: a byte is allocated only if all stamps of its free are complete, or ordered before the next work
// of its new stream. The cost of a miss does not grow with the number of pending blocks, nor of free blocks.
#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/memory/device/completion_poller.h"
#include "runtime/memory/supply/reserve_bound.h"

namespace weir::memory {

class block_reuse {
 public:
  block_reuse(device_context& of, heap_table& heaps, completion_poller& completion, reserve_bound& bound)
      : of_(of), heaps_(heaps), completion_(completion), bound_(bound) {}

  // Whether to get pages instead of borrowing. spare: bytes that may be reserved past the bound's first term.
  bool should_grow_instead(stream_heap& mine, alloc_request const&, std::size_t& spare);
  // Tries each step before growth in turn, cheapest first. Null: none has a block, or the heap should grow.
  void* find(stream_heap& mine, alloc_request const&);
  struct found {
    void* block = nullptr;  // null: the next step may have one,
    bool grow_now = false;  // or none shall be asked
  };
  struct step {
    std::string_view name;  // as docs/decisions/reuse.md says
    bool (block_reuse::*applies)(stream_heap const& mine, alloc_request const&) const;
    found (block_reuse::*run)(stream_heap& mine, alloc_request const&);
  };
  // ordered or known to be complete; no driver call
  void* from_others(stream_heap& mine, alloc_request const&, std::size_t at_most,
                    std::size_t most_donors = ~std::size_t{0});
  // Makes a new block of that heap one of `mine`, behind all work that used its memory. False: it may not wait for
  // that, and the block is free again.
  bool hand_over(stream_heap& from, void* block, stream_heap& mine);
  // For the ladder: a device wait. Null with `gave` raised: bytes became free, search again.
  void* after_a_wait(stream_heap& mine, alloc_request const&, std::size_t& gave);

 private:
  static step const steps[];
  bool is_deterministic(stream_heap const&, alloc_request const&) const;
  bool has_pending(stream_heap const&, alloc_request const&) const;
  bool is_large(stream_heap const&, alloc_request const&) const;
  bool is_small(stream_heap const&, alloc_request const&) const;
  bool may_borrow(stream_heap const&, alloc_request const&) const;
  bool may_poll(stream_heap const&, alloc_request const&) const;
  bool may_borrow_polled(stream_heap const&, alloc_request const&) const;
  bool may_wait_before_growth(stream_heap const&, alloc_request const&) const;
  found in_order_of_calls(stream_heap& mine, alloc_request const&);  // the only policy when deterministic
  found own_pending(stream_heap& mine, alloc_request const&);
  found own_that_moves(stream_heap& mine, alloc_request const&);
  found own_deferred(stream_heap& mine, alloc_request const&);
  found close_fit_of_others(stream_heap& mine, alloc_request const&);
  found polled_of_others(stream_heap& mine, alloc_request const&);
  found oldest_after_a_wait(stream_heap& mine, alloc_request const&);  // a device wait for a recorded fence
  found all_polled(stream_heap& mine, alloc_request const&);
  void* borrowed(stream_heap& mine, alloc_request const&, std::size_t at_most);
  std::size_t own_after_a_wait(stream_heap& mine, alloc_request const&);  // Returns: bytes that came free
  pending_block const* worth_a_wait(session const& mine, alloc_request const&);
  pending_block const* oldest_that_serves(session const& mine, alloc_request const&);  // null: none of those examined
  std::optional<std::vector<clock::stamp>> fences_to_wait_for(session const& mine, pending_block const&);
  bool enough_fit_beyond(session const& mine, alloc_request const&, std::span<clock::stamp const> fences);
  bool enough_newest_beyond(session const& mine, alloc_request const&, std::span<clock::stamp const> fences);
  bool grows_for_what_waits(stream_heap& mine, alloc_request const&);
  enum class ordering : std::uint8_t { already, waits, refused };
  // The home waits for the stamp, on the device. Refused: the home carries collectives, or the driver does not order it
  ordering order_behind(stream_heap& mine, clock::stamp);
  // Reports to an observer which bytes the wait is for.
  void tell_wait(stream_heap& mine, clock::stamp, address at, std::size_t bytes) const;

  device_context& of_;
  heap_table& heaps_;
  completion_poller& completion_;
  reserve_bound& bound_;
};

}  // namespace weir::memory
