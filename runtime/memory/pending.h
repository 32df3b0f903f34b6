// Blocks given back that other streams may still use, waiting in the order of the stamp that holds them.
// Threads: the caller holds the lock of the stream_memory it belongs to. No driver call is made here.
//
// Invariant: a block waits under the first of its stamps that is not yet ordered before its home stream nor complete.
// Each settle() looks at one block a stream beyond those it settles: amortized O(1).
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <vector>

#include "runtime/memory/slab.h"

namespace weir::memory {

struct held_block {
  piece* whole = nullptr;  // a block of the arena, or
  slab* cut = nullptr;     // a slot of a slab
  std::uint32_t index = 0;
  std::size_t bytes = 0;
  std::vector<clock::stamp> stamps;  // all must be passed
  std::uint64_t since = 0;           // the arena's own stamp: its own use of the block, and those it was found to be ordered behind, are before it
};

class pending_blocks {
 public:
  // When the host has no memory for it, nothing has changed.
  void push(held_block b) {
    std::size_t const bytes = b.bytes;
    *place(b.stamps.front().stream) = std::move(b);
    bytes_ += bytes;
  }
  // Takes out what is passed: `passed(stamp, block)`, then `settled(block)`, which throws nothing. A block for whose next wait
  // the host has no memory stays where it is, until the next time.
  template <class Passed, class Settled>
  void settle(Passed passed, Settled settled) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (auto at = queues_.begin(); at != queues_.end();) {
        auto& queue = at->second;
        while (!queue.empty()) {
          held_block& b = queue.front();
          auto const next = std::find_if_not(b.stamps.begin(), b.stamps.end(), [&](clock::stamp s) { return passed(s, b); });
          if (next == b.stamps.begin()) break;
          if (next == b.stamps.end()) {
            held_block const gone = std::move(b);
            queue.pop_front();
            bytes_ -= gone.bytes;
            settled(gone);
            continue;
          }
          held_block* to = nullptr;
          try {
            to = place(next->stream);
          } catch (std::bad_alloc const&) {
            break;
          }
          b.stamps.erase(b.stamps.begin(), next);
          *to = std::move(b);
          queue.pop_front();
          moved = true;
        }
        at = queue.empty() ? queues_.erase(at) : std::next(at);
      }
    }
  }
  // The first block that `suits`, of the last `looks` that only that stream still holds. Takes it out.
  template <class Suits>
  bool take(std::uint64_t stream, Suits suits, held_block& out, std::size_t looks = 16) {
    auto const found = queues_.find(stream);
    if (found == queues_.end()) return false;
    auto& queue = found->second;
    for (std::size_t i = queue.size(); i-- > 0 && looks-- > 0;) {
      if (!suits(queue[i])) continue;
      out = std::move(queue[i]);
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
      bytes_ -= out.bytes;
      if (queue.empty()) queues_.erase(found);
      return true;
    }
    return false;
  }
  std::vector<clock::stamp> fronts() const {  // what each queue waits for next
    std::vector<clock::stamp> all;
    for (auto const& [stream, queue] : queues_) all.push_back(queue.front().stamps.front());
    return all;
  }
  template <class Do>
  void each(Do act) const {
    for (auto const& [stream, queue] : queues_) {
      for (auto const& b : queue) act(b);
    }
  }
  bool empty() const noexcept { return queues_.empty(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  held_block* place(std::uint64_t stream) {  // at the end of its queue
    auto& queue = queues_[stream];
    try {
      return &queue.emplace_back();
    } catch (...) {
      if (queue.empty()) queues_.erase(stream);
      throw;
    }
  }

  std::map<std::uint64_t, std::deque<held_block>> queues_;  // by stream
  std::size_t bytes_ = 0;
};

}  // namespace weir::memory
