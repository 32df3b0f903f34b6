// A named part of a device's memory: the heaps that serve its allocations, and how much they may map.
// Threads: any.
//
// Invariant: charged = bytes of the handles mapped for its heaps + bytes of growth under way for them. It is at
// most the limit, unless the limit was lowered later. A handle is charged to one pool.
//
// The object of an ended pool serves a later pool of its kind, after heap_table::kept_ended others: a thread that
// meets an old reference sees another number.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/rule.h"
#include "runtime/base/sync.h"

namespace weir::memory {

// What the memory of a pool may do: a row for each kind, and one for a pool that is asleep (pool_rules.cpp).
struct pool_rules {
  bool caches = false;       // threads keep caches of it. Else each call is seen: by a capture, or for an end
  bool pages_stay = false;   // no handle goes to another pool or to the driver: what is mapped counts as live
  bool places_stay = false;  // until the pool ends, also where a handle was: a graph's launches use it there
  bool captured = false;     // its homes are streams inside a capture
  bool one_handle = false;   // it maps one, of all its limit. Runs lie among blocks
  bool serves_rest = false;  // what is free there serves those that name no pool
  static pool_rules const rows[];
};

class memory_pool {
 public:
  // rest: what no pool of the program holds. left: what ended pools leave, until it is free. graph: a graph's
  // launches write its pages. registered: its limit is one handle that other processes may map.
  enum class kind : std::uint8_t { ordinary, registered, graph, rest, left };
  // table: number of the heap table that it belongs to. number: unique in the process
  memory_pool(std::uint64_t table, std::uint64_t number, kind k, std::string name, std::size_t limit)
      : of(table), is(k), number_(number), name_(std::move(name)), limit_(limit) {}
  memory_pool(memory_pool const&) = delete;

  // A later pool. Requires: ended, nothing is charged, and no heap is in it
  void begin_again(std::uint64_t number, std::string name, std::size_t limit) noexcept {
    base::lock_guard const hold(lock_);
    number_.set(number);
    name_ = std::move(name);
    limit_ = limit;
    charged_ = most_charged_ = asleep_bytes_ = asleep_blocks_ = 0;
    holders_ = 1;
    closed_.set(false), ended_ = false;
    asleep_.set(false), ending_.set(false);
  }
  // False, without a change: the limit forbids it.
  bool charge(std::size_t bytes) noexcept { return charge_within(bytes, bytes) == bytes; }
  // Charges as many of `bytes`, in multiples of `unit`, as the limit permits.
  std::size_t charge_within(std::size_t bytes, std::size_t unit) noexcept {
    base::lock_guard const hold(lock_);
    std::size_t const taken = unit ? std::min(bytes, left()) / unit * unit : 0;  // unit 0: of charge(0)
    charged_ += taken;
    most_charged_ = std::max(most_charged_, charged_);
    return taken;
  }
  void refund(std::size_t bytes) noexcept {
    base::lock_guard const hold(lock_);
    WEIR_RULE(charged_ >= bytes, "bytes charged to a pool fall below zero");
    charged_ -= bytes;
  }
  void take_over(std::size_t bytes) noexcept {  // from another pool, past the limit
    base::lock_guard const hold(lock_);
    charged_ += bytes;
    most_charged_ = std::max(most_charged_, charged_);
  }
  void reset_peak() noexcept {
    base::lock_guard const hold(lock_);
    most_charged_ = charged_;
  }
  void set_limit(std::size_t bytes) noexcept {
    base::lock_guard const hold(lock_);
    limit_ = bytes;
  }
  // The program's object and every registration hold a pool.
  void hold() noexcept {
    base::lock_guard const hold(lock_);
    ++holders_;
  }
  bool let_go() noexcept {  // Returns: whether nothing holds it, so that it may end
    base::lock_guard const hold(lock_);
    WEIR_RULE(holders_ > 0, "a pool is let go that nobody holds");
    return --holders_ == 0;
  }
  void close() noexcept {  // the program's object ends: guards have no effect from now on
    base::lock_guard const hold(lock_);
    closed_.set(true);
  }
  void end() noexcept {
    base::lock_guard const hold(lock_);
    closed_.set(true), ended_ = true;
  }
  struct sums {
    std::size_t limit, charged, most_charged, asleep;  // bytes; limit 0: none
  };
  sums now() const noexcept {
    base::lock_guard const hold(lock_);
    return {limit_, charged_, most_charged_, asleep_bytes_};
  }
  std::size_t room() const noexcept {  // bytes that may still be charged
    base::lock_guard const hold(lock_);
    return left();
  }
  pool_rules const& rules() const noexcept {
    constexpr std::size_t asleep = 5;  // the row after those of the kinds
    return pool_rules::rows[is_asleep() ? asleep : static_cast<std::size_t>(is)];
  }
  // Whether its free memory serves a request in `other`.
  bool serves(memory_pool const& other) const noexcept {
    return this == &other || (rules().serves_rest && other.is == kind::rest);
  }
  bool is_registered() const noexcept { return is == kind::registered; }
  // Its memory is away, or is going or coming. Nothing is allocated from it, and no program uses it.
  bool is_asleep() const noexcept { return asleep_.get(); }
  void set_asleep(bool yes) noexcept {
    base::lock_guard const hold(lock_);
    asleep_.set(yes);
    asleep_bytes_ = asleep_blocks_ = 0;
  }
  void add_asleep(std::size_t blocks) noexcept {  // of one heap
    base::lock_guard const hold(lock_);
    asleep_blocks_ += blocks;
  }
  bool free_asleep() noexcept {  // a block. True: it was the last one
    base::lock_guard const hold(lock_);
    WEIR_RULE(asleep_blocks_ > 0, "a sleeping pool has a block that it does not count");
    return --asleep_blocks_ == 0;
  }
  bool has_asleep() const noexcept {
    base::lock_guard const hold(lock_);
    return asleep_blocks_ > 0;
  }
  void put_asleep(std::size_t bytes) noexcept {  // how much of it is asleep
    base::lock_guard const hold(lock_);
    asleep_bytes_ = bytes;
  }
  // Of a graph: the program has let it go, and launches may still run.
  bool is_ending() const noexcept { return ending_.get(); }
  void set_ending() noexcept { ending_.set(true); }
  bool is_open_as(std::uint64_t number) const noexcept {  // guards of that pool have an effect
    base::lock_guard const hold(lock_);
    return !closed_.get() && number_.get() == number;
  }
  bool is_over() const noexcept { return closed_.get(); }  // closed, or ended. Set before fast paths are invalidated
  bool has_ended() const noexcept {
    base::lock_guard const hold(lock_);
    return ended_;
  }

  std::uint64_t number() const noexcept { return number_.get(); }
  std::string name() const {
    base::lock_guard const hold(lock_);
    return name_;
  }
  std::uint64_t const of;
  kind const is;

 private:
  std::size_t left() const noexcept {
    if (!limit_)
      return ~std::size_t{0};
    return limit_ > charged_ ? limit_ - charged_ : 0;
  }
  mutable base::mutex lock_{base::quiet};  // held for these members alone
  base::single_writer<std::uint64_t> number_;
  std::string name_;
  std::size_t limit_, charged_ = 0, most_charged_ = 0, asleep_bytes_ = 0, asleep_blocks_ = 0;
  int holders_ = 1;
  base::single_writer<bool> closed_{false};  // changes under lock_
  bool ended_ = false;
  base::single_writer<bool> asleep_{false}, ending_{false};
};

// A pool that a thread allocates from. It may end meanwhile, and its memory too: only the heap table with that
// number looks at it.
struct pool_in_force {
  std::uint64_t of = 0, number = 0;  // of the heap table, and of the pool
  memory_pool* pool = nullptr;
  friend bool operator==(pool_in_force const& a, pool_in_force const& b) noexcept {
    return a.of == b.of && a.number == b.number;
  }
};

}  // namespace weir::memory
