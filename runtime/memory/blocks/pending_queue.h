// Pending blocks: freed, and queued under a stream that may still use them.
// Threads: the caller holds the lock of the stream_heap that owns it. Makes no driver call.
//
// Invariant: a block waits under the first of its stamps that is not yet ordered before its home stream nor
// complete. reclaim() examines one block a stream beyond those it reclaims: amortized O(1). A block of the
// arena is found by size in O(log n), the oldest block in O(1).
#pragma once
#include <algorithm>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "runtime/memory/blocks/slab.h"

namespace weir::memory {

struct pending_block {
  heap_block* block = nullptr;  // a block of the arena, or
  slab* in_slab = nullptr;      // a slot of a slab
  std::uint32_t index = 0;
  std::size_t bytes = 0;             // `more` included
  std::vector<clock::stamp> stamps;  // all must be ordered or complete
  // number on the home stream: the home's own use, and uses found to be ordered before it, are before that
  std::uint64_t since = 0;
  std::uint64_t sequence = 0;        // order of the free; push() sets it
  std::vector<slabs::taken> more{};  // slots freed together with this one, which wait for the same

  std::size_t slots() const noexcept { return in_slab ? 1 + more.size() : 0; }
  template <class Do>
  void each_slot(Do act) const {  // Requires: slots
    act(slabs::taken{in_slab, index});
    for (slabs::taken const s : more)
      act(s);
  }
};

class pending_queue {
  using list_hook = boost::intrusive::list_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;
  using set_hook = boost::intrusive::set_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;
  struct node : pending_block {
    list_hook in_queue, in_sequence;
    set_hook in_sizes;
  };
  using no_size = boost::intrusive::constant_time_size<false>;
  using node_list =
      boost::intrusive::list<node, boost::intrusive::member_hook<node, list_hook, &node::in_queue>, no_size>;
  using queues = std::map<std::uint64_t, node_list>;
  using numbers = std::map<std::uint64_t, std::uint64_t>;

 public:
  pending_queue() = default;
  pending_queue(pending_queue const&) = delete;
  ~pending_queue() {
    by_sequence_.clear_and_dispose([](node* n) { delete n; });
    spare_.clear_and_dispose([](node* n) { delete n; });
  }

  // Host memory for a push() of at most so many stamps. Throws: bad_alloc
  void make_room(std::size_t stamps) {
    if (stamps <= room_) [[likely]]
      return;
    if (spare_.empty()) {
      spare_.push_front(*new node);
      ++spares_;
    }
    spare_.front().stamps.reserve(stamps);
    // Spare entries have any keys: entry() gives each the stream's.
    if (spare_queue_.empty())
      spare_queue_.try_emplace(0);
    while (spare_newest_.size() < stamps)
      spare_newest_.try_emplace(spare_newest_.empty() ? 0 : spare_newest_.rbegin()->first + 1);
    room_ = stamps;
  }
  // Throws: bad_alloc; the block is not queued then.
  void push(pending_block const& b) {
    make_room(b.stamps.size());
    push(b, b.stamps);
  }
  // For these stamps instead of its own. Requires: make_room for them, and no reclaim since
  void push(pending_block const& b, std::span<clock::stamp const> stamps) noexcept {
    node& n = spare_.front();
    n.stamps.assign(stamps.begin(), stamps.end());  // copied: reuses the node's capacity
    n.block = b.block, n.in_slab = b.in_slab, n.index = b.index, n.bytes = b.bytes, n.since = b.since;
    n.more.clear();
    // Far more streams are known than blocks wait, and more than twice those that the last walk left.
    if (newest_.size() > most_newest * (size_ + most_kept) && newest_.size() > 2 * newest_left_)
      forget_streams_without_blocks();
    auto& queue = queue_for(stamps, spare_queue_, spare_newest_);
    spare_.pop_front(), --spares_;
    room_ = 0;  // the room is used up
    enter(n, queue);
  }
  // Host memory for slots that will wait together, for at most two streams, reserved before they are freed.
  class spare_node {
   public:
    explicit operator bool() const noexcept { return block_ && !queue_.empty() && newest_.size() >= most_awaited; }

   private:
    friend class pending_queue;
    std::unique_ptr<node> block_;
    queues queue_;    // an entry, empty
    numbers newest_;  // entries, 0
  };
  static constexpr std::size_t most_together = 64;  // slots
  static constexpr std::size_t most_awaited = 2;    // streams that they wait for
  static void make(spare_node& r) {                 // Throws: bad_alloc; another call makes the rest
    if (!r.block_)
      r.block_ = std::make_unique<node>();
    r.block_->stamps.reserve(most_awaited);
    r.block_->more.reserve(most_together - 1);
    r.queue_[0];
    for (std::uint64_t k = 0; r.newest_.size() < most_awaited; ++k)
      r.newest_[k];
  }
  // Allocates nothing, and uses up the room. Requires: a room made; slots and stamps not empty.
  void push(spare_node& r, std::span<slabs::taken const> slots, std::size_t bytes, std::span<clock::stamp const> stamps,
            std::uint64_t since) noexcept {
    node& n = *r.block_.release();
    n.stamps.assign(stamps.begin(), stamps.end());
    n.block = nullptr, n.in_slab = slots.front().from, n.index = slots.front().index, n.bytes = bytes, n.since = since;
    n.more.assign(slots.begin() + 1, slots.end());
    enter(n, queue_for(stamps, r.queue_, r.newest_));
  }
  // Removes each block whose stamps are all `passed(stamp, block)`, and calls `reclaimed(block)`, which must
  // not throw. If the host has no memory to queue a block under its next stamp, the block stays as it is.
  template <class Passed, class Reclaimed>
  void reclaim(Passed passed, Reclaimed reclaimed) {
    bool any_moved = true;
    while (any_moved) {  // a block may have moved to a queue that the walk had passed
      any_moved = false;
      for (auto at = queues_.begin(); at != queues_.end();) {
        any_moved |= reclaim_from(at->second, passed, reclaimed);
        auto const here = at++;
        forget_if_empty(here);
      }
      forget_when_empty();
    }
  }
  // The block freed first; null: empty.
  pending_block const* oldest() const noexcept { return by_sequence_.empty() ? nullptr : &by_sequence_.front(); }
  // Removes the oldest block whatever it waits for, then calls `reclaimed(block)`. Requires: not empty.
  template <class Reclaimed>
  void reclaim_oldest(Reclaimed reclaimed) {
    node& b = by_sequence_.front();
    auto const in = queues_.find(b.stamps.front().stream);
    in->second.erase(in->second.iterator_to(b));
    leave(b, reclaimed);
    forget_if_empty(in);
    forget_when_empty();
  }
  // Removes the first that `suits` of the newest `looks` blocks queued under that stream, newest first.
  template <class Suits>
  bool take(std::uint64_t stream, Suits suits, pending_block& out, std::size_t looks = 16) {
    auto const found = queues_.find(stream);
    if (found == queues_.end())
      return false;
    auto& queue = found->second;
    for (auto at = queue.rbegin(); at != queue.rend() && looks-- > 0; ++at) {
      if (!suits(static_cast<pending_block const&>(*at)))
        continue;
      node& b = *at;
      queue.erase(queue.iterator_to(b));
      leave(b, [&](pending_block& gone) { out = std::move(gone); });
      forget_if_empty(found);
      forget_when_empty();
      return true;
    }
    return false;
  }
  // Blocks of the arena of at least `bytes`, the smallest first, of one size the oldest first, until
  // `enough(block)` or `looks` blocks.
  template <class Enough>
  void fitting(std::size_t bytes, int looks, Enough enough) const {
    for (auto at = by_size_.lower_bound(bytes, below{}); at != by_size_.end() && looks-- > 0; ++at)
      if (enough(static_cast<pending_block const&>(*at)))
        return;
  }
  // In the order of their frees, or in reverse, until `enough(block)` or `looks` blocks.
  template <class Enough>
  void first_given(int looks, Enough enough) const {
    for (auto at = by_sequence_.begin(); at != by_sequence_.end() && looks-- > 0; ++at)
      if (enough(static_cast<pending_block const&>(*at)))
        return;
  }
  template <class Enough>
  void last_given(int looks, Enough enough) const {
    for (auto at = by_sequence_.rbegin(); at != by_sequence_.rend() && looks-- > 0; ++at)
      if (enough(static_cast<pending_block const&>(*at)))
        return;
  }
  std::vector<clock::stamp> fronts() const {  // the stamp that each queue waits for next
    std::vector<clock::stamp> all;
    for (auto const& [stream, queue] : queues_)
      if (!queue.empty())
        all.push_back(queue.front().stamps.front());
    return all;
  }
  std::vector<clock::stamp> newest() const {  // one a stream: no block waits for a later stamp of it
    std::vector<clock::stamp> all;
    for (auto const& [stream, n] : newest_)
      if (n)
        all.push_back({stream, n});
    return all;
  }
  template <class Do>
  void each(Do act) const {
    for (node const& b : by_sequence_)
      act(static_cast<pending_block const&>(b));
  }
  // bytes, of blocks of the arena
  std::size_t largest() const noexcept { return by_size_.empty() ? 0 : by_size_.rbegin()->bytes; }
  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t bytes_in_slots() const noexcept { return bytes_in_slots_; }

 private:
  struct below {
    bool operator()(node const& a, node const& b) const noexcept {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.sequence < b.sequence;
    }
    bool operator()(node const& a, std::size_t bytes) const noexcept { return a.bytes < bytes; }
    bool operator()(std::size_t bytes, node const& b) const noexcept { return bytes < b.bytes; }
  };
  // The entry of that stream, made of a spare one if there is none.
  template <class Map>
  static typename Map::mapped_type& entry(Map& in, Map& spare, std::uint64_t stream) noexcept {
    auto const known = in.find(stream);
    if (known != in.end())
      return known->second;
    auto made = spare.extract(spare.begin());
    made.key() = stream;
    return in.insert(std::move(made)).position->second;
  }
  // Notes the stamps. Returns: the queue of the first
  node_list& queue_for(std::span<clock::stamp const> stamps, queues& spare_queue, numbers& spare_newest) noexcept {
    for (clock::stamp const s : stamps) {
      std::uint64_t& newest = entry(newest_, spare_newest, s.stream);
      newest = std::max(newest, s.n);
    }
    return entry(queues_, spare_queue, stamps.front().stream);
  }
  // reclaim() of one queue. Returns: whether a block went to the queue of its next stamp.
  template <class Passed, class Reclaimed>
  bool reclaim_from(node_list& queue, Passed& passed, Reclaimed& reclaimed) {
    bool any_moved = false;
    while (!queue.empty()) {
      node& b = queue.front();
      auto const next =
          std::find_if_not(b.stamps.begin(), b.stamps.end(), [&](clock::stamp s) { return passed(s, b); });
      if (next == b.stamps.begin())  // the one block of this queue that is examined in vain
        break;
      if (next == b.stamps.end()) {
        queue.pop_front();
        leave(b, reclaimed);
        continue;
      }
      node_list* to = nullptr;
      try {
        to = &queues_[next->stream];
      } catch (std::bad_alloc const&) {
        break;
      }
      b.stamps.erase(b.stamps.begin(), next);
      queue.pop_front();
      to->push_back(b);
      any_moved = true;
    }
    return any_moved;
  }
  void enter(node& n, node_list& queue) noexcept {
    WEIR_RULE(!n.stamps.empty(), "a pending block waits for nothing");
    n.sequence = ++last_sequence_;
    queue.push_back(n);
    by_sequence_.push_back(n);
    if (n.block)
      by_size_.insert(n);
    bytes_ += n.bytes;
    bytes_in_slots_ += n.in_slab ? n.bytes : 0;
    ++size_;
  }
  template <class Reclaimed>
  void leave(node& b, Reclaimed reclaimed) noexcept {  // Requires: not in its queue
    by_sequence_.erase(by_sequence_.iterator_to(b));
    if (b.block)
      by_size_.erase(by_size_.iterator_to(b));
    WEIR_RULE(size_ > 0 && bytes_ >= b.bytes, "the bytes of pending blocks differ from those in the queue");
    bytes_ -= b.bytes;
    bytes_in_slots_ -= b.in_slab ? b.bytes : 0;
    --size_;
    reclaimed(static_cast<pending_block&>(b));
    if (spares_ == most_spares)
      return delete &b;
    spare_.push_front(b);
    ++spares_;
    room_ = 0;  // make_room() did not see this one
  }
  // Streams come and go while others' blocks wait: what is known of them does not grow with their number.
  void forget_streams_without_blocks() noexcept {
    for (auto& [stream, n] : newest_)
      n = 0;
    for (node const& b : by_sequence_)
      for (clock::stamp const s : b.stamps) {
        auto const known = newest_.find(s.stream);
        if (known != newest_.end())
          known->second = std::max(known->second, s.n);
      }
    std::erase_if(newest_, [](auto const& one) { return one.second == 0; });
    newest_left_ = newest_.size();
  }
  // Few streams keep their entries for their next block; those of many streams are dropped.
  void forget_if_empty(queues::iterator at) noexcept {
    if (at->second.empty() && queues_.size() > most_kept)
      queues_.erase(at);
  }
  void forget_when_empty() noexcept {
    if (size_ != 0)
      return;
    if (queues_.size() > most_kept || newest_.size() > most_kept) {
      newest_.clear();
      queues_.clear();
      return;
    }
    for (auto& [stream, n] : newest_)
      n = 0;
  }

  static constexpr std::size_t most_spares = 1024, most_kept = 4, most_newest = 4;
  queues queues_;    // by stream; some may be empty
  node_list spare_;  // unused nodes: allocating and freeing threads would contend for malloc's lock
  std::size_t spares_ = 0;
  boost::intrusive::list<node, boost::intrusive::member_hook<node, list_hook, &node::in_sequence>, no_size>
      by_sequence_;
  boost::intrusive::set<node, boost::intrusive::member_hook<node, set_hook, &node::in_sizes>,
                        boost::intrusive::compare<below>, no_size>
      by_size_;
  numbers newest_;               // highest number by stream; 0: none queued since all was empty
  std::size_t newest_left_ = 0;  // of it, when streams were last forgotten: each walk follows as many pushes
  queues spare_queue_;           // entries for make_room(), empty and 0
  numbers spare_newest_;
  std::size_t room_ = 0;  // stamps that the spare node and entries have room for
  std::uint64_t last_sequence_ = 0;
  std::size_t size_ = 0, bytes_ = 0, bytes_in_slots_ = 0;
};

}  // namespace weir::memory
