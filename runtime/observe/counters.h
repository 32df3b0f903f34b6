// Exact counts of one device's memory, each with its peak, kept together so that every reading of them adds up.
// Threads: any; one short lock, under which nothing else is called.
//
// Invariant: reserved = allocated + pending + cached, in bytes, for small, large and all.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/base/sync.h"
#include "weir/stats.h"

namespace weir::observe {

enum class size_pool : std::uint8_t { small, large };  // small: a slot of a slab

class counters {
 public:
  // Bytes are asked of the driver only once they are charged here. Ensures: false and no change if reserved would pass the limit.
  bool charge(std::size_t bytes) {
    lock_guard hold(lock_);
    if (limit_ && static_cast<std::size_t>(now_.reserved_bytes.all.current) + bytes > limit_) return false;
    both(now_.reserved_bytes, size_pool::large, as(bytes));
    both(now_.cached_bytes, size_pool::large, as(bytes));
    return true;
  }
  void refund(std::size_t bytes) {  // what was charged was refused, or has been given back to the driver
    lock_guard hold(lock_);
    both(now_.reserved_bytes, size_pool::large, -as(bytes));
    both(now_.cached_bytes, size_pool::large, -as(bytes));
  }
  void handle_mapped() { edit([](memory_statistics& n) { both(n.segment, size_pool::large, 1), ++n.pages_mapped; }); }
  void handle_gone() { edit([](memory_statistics& n) { both(n.segment, size_pool::large, -1); }); }
  void run_cut(std::size_t bytes) { move_run(as(bytes)); }        // a stretch of the arena becomes a slab's run
  void run_returned(std::size_t bytes) { move_run(-as(bytes)); }

  void allocated(size_pool p, std::size_t rounded, std::size_t requested) {
    edit([&](memory_statistics& n) {
      both(n.allocation, p, 1);
      both(n.active, p, 1);
      both(n.allocated_bytes, p, as(rounded));
      both(n.active_bytes, p, as(rounded));
      both(n.requested_bytes, p, as(requested));
      both(n.cached_bytes, p, -as(rounded));
    });
  }
  // Given back, and usable by its stream at once.
  void freed(size_pool p, std::size_t rounded, std::size_t requested) {
    edit([&](memory_statistics& n) {
      out(n, p, rounded, requested);
      both(n.active, p, -1);
      both(n.active_bytes, p, -as(rounded));
      both(n.cached_bytes, p, as(rounded));
    });
  }
  // Given back, but other streams may still use it.
  void held(size_pool p, std::size_t rounded, std::size_t requested) {
    edit([&](memory_statistics& n) {
      out(n, p, rounded, requested);
      both(n.pending_bytes, p, as(rounded));
    });
  }
  void held_no_more(size_pool p, std::size_t rounded) {
    edit([&](memory_statistics& n) {
      both(n.active, p, -1);
      both(n.active_bytes, p, -as(rounded));
      both(n.pending_bytes, p, -as(rounded));
      both(n.cached_bytes, p, as(rounded));
    });
  }
  void free_pieces(std::int64_t change) {
    if (change) edit([&](memory_statistics& n) { both(n.inactive, size_pool::large, change); });
  }
  void retried() { edit([](memory_statistics& n) { ++n.num_alloc_retries; }); }
  void ran_out() { edit([](memory_statistics& n) { ++n.num_ooms; }); }
  void waited() { edit([](memory_statistics& n) { ++n.waits_inserted; }); }
  void fenced() { edit([](memory_statistics& n) { ++n.fences; }); }

  void set_limit(std::size_t bytes) {
    lock_guard hold(lock_);
    limit_ = bytes;
  }
  std::size_t limit() const {
    lock_guard hold(lock_);
    return limit_;
  }
  void missed() { edit([&](memory_statistics&) { ++misses_; }); }  // an allocation had to ask the driver for memory
  memory_statistics read() const {
    lock_guard hold(lock_);
    memory_statistics out = now_;
    out.cache_hits = static_cast<std::uint64_t>(now_.allocation.all.allocated) - misses_;
    return out;
  }
  void reset_peak() {
    edit([](memory_statistics& n) {
      each(n, [](stat& s) { s.peak = s.current; });
    });
  }
  void reset_accumulated() {
    edit([this](memory_statistics& n) {
      each(n, [](stat& s) { s.allocated = s.freed = 0; });
      misses_ = 0;
      n.num_ooms = n.num_alloc_retries = n.fences = n.waits_inserted = n.pages_mapped = 0;
    });
  }

 private:
  using lock_guard = base::lock_guard;
  static std::int64_t as(std::size_t bytes) noexcept { return static_cast<std::int64_t>(bytes); }
  static void add(stat& s, std::int64_t change) noexcept {
    s.current += change;
    (change > 0 ? s.allocated : s.freed) += change > 0 ? change : -change;
    if (s.current > s.peak) s.peak = s.current;
  }
  static void both(stat_by_size& s, size_pool p, std::int64_t change) noexcept {
    add(s.all, change);
    add(p == size_pool::small ? s.small : s.large, change);
  }
  static void out(memory_statistics& n, size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    both(n.allocation, p, -1);
    both(n.allocated_bytes, p, -as(rounded));
    both(n.requested_bytes, p, -as(requested));
  }
  template <class Do>
  static void each(memory_statistics& n, Do act) {
    for (stat_by_size* s : {&n.allocation, &n.segment, &n.active, &n.inactive, &n.allocated_bytes, &n.requested_bytes, &n.reserved_bytes, &n.active_bytes,
                            &n.pending_bytes, &n.cached_bytes}) {
      act(s->all), act(s->small), act(s->large);
    }
  }
  template <class Do>
  void edit(Do act) {
    lock_guard hold(lock_);
    act(now_);
  }
  void move_run(std::int64_t bytes) {
    lock_guard hold(lock_);
    for (stat_by_size* s : {&now_.reserved_bytes, &now_.cached_bytes}) {
      add(s->small, bytes);
      add(s->large, -bytes);
    }
  }

  mutable base::mutex lock_;
  memory_statistics now_{};
  std::size_t limit_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace weir::observe
