// Blocks given back that other streams may still use, waiting in the order of the stamp that holds them.
// Threads: the caller holds the lock of the stream_memory it belongs to. No driver call is made here.
//
// Invariant: a block waits under the first of its stamps that is not yet ordered before its home stream nor complete.
// Each settle() looks at one block a stream beyond those it settles: amortized O(1).
#pragma once
#include <deque>
#include <map>
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
  void push(held_block b) {
    bytes_ += b.bytes;
    auto& queue = queues_[b.stamps.front().stream];
    queue.push_back(std::move(b));
  }
  // Takes out what is passed: `passed(stamp, block)`, then `settled(block)`.
  template <class Passed, class Settled>
  void settle(Passed passed, Settled settled) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (auto at = queues_.begin(); at != queues_.end();) {
        auto& queue = at->second;
        while (!queue.empty() && passed(queue.front().stamps.front(), queue.front())) {
          held_block b = std::move(queue.front());
          queue.pop_front();
          bytes_ -= b.bytes;
          while (!b.stamps.empty() && passed(b.stamps.front(), b)) b.stamps.erase(b.stamps.begin());
          if (b.stamps.empty()) {
            settled(b);
          } else {
            moved = true;
            push(std::move(b));
          }
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
  std::map<std::uint64_t, std::deque<held_block>> queues_;  // by stream
  std::size_t bytes_ = 0;
};

}  // namespace weir::memory
