// Memory statistics of one device. Frequent events are counted by one heap_counters per stream's memory, and summed
// on reading. Events that call the driver are counted in one place, which enforces the limit.
// Threads: the holder of a memory's lock writes its heap_counters, and any thread reads it. Counters: any.
//
// Invariant: reserved = allocated + pending + cached, in bytes, for small, large and all.
// Peaks are exact if one thread allocates on the device's only stream: that thread's cache may raise a level,
// or the cached bytes, only as far as heap_counters granted (unpublished.h). With several threads or streams,
// slots in thread caches count as allocated, and requested bytes are known as of the last time a thread held
// the lock: the error is at most what those caches hold. With several streams, each heap_counters also reports its
// level with some slack, so that a peak errs upward. For each other one the error is at most the largest of
//   * an eighth of its bytes
//   * `slack_bytes` for each of four heap_counters; more of them share the same sum equally
//   * its part of an eighth of the peak: a quarter of that in equal shares, the rest by what each holds
// A peak of bytes never exceeds the peak of reserved bytes.
// Peaks of pending and cached bytes, and of free blocks, are the sums of the heap_counters' own peaks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/rule.h"
#include "runtime/base/sync.h"
#include "runtime/observe/shared_levels.h"
#include "runtime/observe/stat_math.h"
#include "runtime/observe/unpublished.h"

namespace weir::observe {

enum class size_pool : std::uint8_t { small, large };  // small: a slot of a slab

// What thread caches know better than heap_counters, which counts the slots they hold as allocated.
struct cached_slots {
  std::int64_t held = 0, held_bytes = 0;  // now in a cache
  std::int64_t waiting_bytes = 0;         // deferred frees
  // size less requested bytes, of slots allocated from caches less those freed to them
  std::int64_t unused_bytes = 0;
  // totals
  std::int64_t taken = 0, total_bytes = 0, taken_requested = 0, given = 0, given_bytes = 0, given_requested = 0;
  std::int64_t waited = 0, waited_bytes = 0;  // total of deferred frees among those given
  cached_slots& operator+=(cached_slots const& o) noexcept {
    held += o.held, held_bytes += o.held_bytes, waiting_bytes += o.waiting_bytes, waited += o.waited,
        waited_bytes += o.waited_bytes;
    unused_bytes += o.unused_bytes;
    taken += o.taken, total_bytes += o.total_bytes, taken_requested += o.taken_requested;
    given += o.given, given_bytes += o.given_bytes, given_requested += o.given_requested;
    return *this;
  }
};

// The counters of one stream's memory. Sums only grow, levels are their differences, and peaks are noted
// where a level turns from rising to falling.
class heap_counters {
 public:
  static constexpr std::int64_t slack_bytes = 8 << 20, slack_blocks = 4096;
  heap_counters() = default;
  heap_counters(heap_counters const&) = delete;

  // Called for every block of an arena. Inline, so that the compiler knows the pool.
  [[gnu::always_inline]] void allocated(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    take(p, 1, as(rounded), as(requested), taken_);
  }
  // The stream can reuse the block at once.
  [[gnu::always_inline]] void freed(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    give(p, 1, as(rounded), as(requested), given_);
    regain(requested);
    fell(p, 1, as(rounded), as(requested));
    cached_rose(p, as(rounded));
  }
  // Freed, but other streams may still use the block.
  void freed_pending(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    give(p, 1, as(rounded), as(requested), given_);
    at(pending_, p).add(1, as(rounded), 0);
    for (std::size_t q : {index(p), all})
      pending_peak_[q].raise(pending(q));
    drift(rounded);
  }
  // Deferred frees become pending. The levels of a cache that is alone come from its reports: here, and where
  // slots are drawn or returned, none of them changes.
  void sent_home(std::int64_t slots, std::int64_t bytes) noexcept {
    if (alone_.get())
      returned_[index(size_pool::small)].add(slots, bytes, bytes);
    else
      give(size_pool::small, slots, bytes, bytes, returned_);
    sent_.add(slots, bytes, 0);
    for (std::size_t q : {index(size_pool::small), all})
      pending_peak_[q].raise(pending(q));
    drift(static_cast<std::size_t>(bytes));
  }
  // `bytes` more are deferred frees. Notes the pending peak before a part of it becomes free.
  void also_waiting(std::int64_t bytes) noexcept {
    for (std::size_t q : {index(size_pool::small), all})
      pending_peak_[q].raise(pending(q) + bytes);
  }
  void pending_no_more(size_pool p, std::size_t rounded, std::size_t blocks = 1) noexcept {
    falls();
    at(reclaimed_, p).add(as(blocks), as(rounded), 0);
    drift(rounded);
    cached_rose(p, as(rounded));
  }
  // Slots move to a thread cache, or back.
  void drawn(std::int64_t slots, std::size_t bytes) noexcept {
    if (alone_.get())
      return at(drawn_, size_pool::small).add(slots, as(bytes), as(bytes));
    take(size_pool::small, slots, as(bytes), as(bytes), drawn_);
  }
  void returned(std::int64_t slots, std::size_t bytes) noexcept {
    if (alone_.get())
      return at(returned_, size_pool::small).add(slots, as(bytes), as(bytes));
    give(size_pool::small, slots, as(bytes), as(bytes), returned_);
    regain(bytes);
    fell(size_pool::small, slots, as(bytes), as(bytes));
    cached_rose(size_pool::small, as(bytes));
  }
  // What a thread cache did since its last report: allocated less freed, and of that its deferred frees.
  void absorb(change const& out, change const& deferred) noexcept;
  // absorb(), and how far the only cache may go before its next report. Requires: set_alone(true) holds, and
  // nothing else was counted since the last answer, or since absorb()
  grant left_after(change const& out, change const& deferred) noexcept;
  // The only cache has a grant that is set aside in all rooms, so that large blocks need no report from it.
  // After each such call the owner checks is_used_up(), and if true, the cache reports.
  bool sets_aside() const noexcept { return set_aside_; }
  bool is_used_up() const noexcept {
    return set_aside_ && (bytes_left_.near() | requested_left_.near() | blocks_left_.near() | cached_left_.near()) < 0;
  }
  // One cache, which reports before a peak can pass, so that the slots it holds are known to be free.
  // Otherwise slots in caches count as allocated.
  void set_alone(bool to) noexcept;
  bool is_shared() const noexcept { return shared_ != nullptr; }
  void mapped(std::int64_t bytes) noexcept { map(size_pool::large, bytes); }
  void run_cut(std::int64_t bytes) noexcept {  // negative: returned
    size_pool const from = bytes > 0 ? size_pool::large : size_pool::small;
    size_pool const to = bytes > 0 ? size_pool::small : size_pool::large;
    std::int64_t const moved = bytes > 0 ? bytes : -bytes;
    mapped_[index(from)].add(-moved);  // decrease first: those bytes were mapped once
    map(to, moved);
  }
  // No branch, because a branch predictor cannot guess whether an allocation leaves a free block.
  void free_blocks(std::int64_t change) noexcept {
    std::int64_t const gone = change & (change >> 63);
    free_blocks_made_.add(change - gone);
    free_blocks_gone_.add(-gone);
    std::int64_t const now = free_blocks_made_.get() - free_blocks_gone_.get(), most = free_blocks_peak_.get();
    free_blocks_peak_.set(now > most ? now : most);
  }
  std::int64_t bytes_live() const noexcept { return live(all, &sums::bytes); }
  std::int64_t bytes_live(size_pool p) const noexcept { return live(index(p), &sums::bytes); }
  std::int64_t bytes_pending() const noexcept { return pending(all); }
  std::int64_t large_taken() const noexcept { return taken_[index(size_pool::large)].blocks.get(); }  // ever
  std::int64_t bytes_mapped() const noexcept { return mapped_[0].get() + mapped_[1].get(); }
  // bytes, since the last reset of peaks
  std::int64_t most_live() const noexcept {
    constexpr auto allocated_bytes = static_cast<std::size_t>(level::allocated_bytes);
    return std::max(peaks_[allocated_bytes][all].get(), live(all, &sums::bytes));
  }
  // There are other heap_counters from now on, and this one reports to them.
  void share(shared_levels& with) noexcept {
    if (shared_)
      return publish();  // less slack, because there are more heap_counters
    set_alone(false);
    shared_ = &with;
    with.join();
    note_peaks();
    with.raise(peaks());  // the sum was at least as high while this one was alone
    publish();
  }
  void reset_peak() noexcept {
    auto const now = current();
    for (std::size_t k = 0; k < levels; ++k) {
      for (std::size_t p = 0; p < 3; ++p)
        peaks_[k][p].set(now[k][p]);
    }
    for (std::size_t p = 0; p < 3; ++p)
      pending_peak_[p].set(pending(p)), cached_peak_[p].set(cached(p));
    // Each level is at its peak now.
    for (headroom* r : {&bytes_left_, &requested_left_, &blocks_left_, &cached_left_})
      r->set({});
    free_blocks_peak_.set(free_blocks_made_.get() - free_blocks_gone_.get());
    if (shared_)
      publish();
  }

 private:
  friend class device_counters;
  using value = base::single_writer<std::int64_t>;
  struct sums {
    value blocks, bytes, requested;
    void add(std::int64_t n, std::int64_t b, std::int64_t r) noexcept { blocks.add(n), bytes.add(b), requested.add(r); }
  };
  using pools = std::array<sums, 2>;
  static constexpr std::size_t all = 2;
  static std::int64_t as(std::size_t bytes) noexcept { return static_cast<std::int64_t>(bytes); }
  static std::size_t index(size_pool p) noexcept { return static_cast<std::size_t>(p); }
  static sums& at(pools& s, size_pool p) noexcept { return s[index(p)]; }

  [[gnu::always_inline]] void take(size_pool p, std::int64_t n, std::int64_t bytes, std::int64_t requested,
                                   pools& as_what) noexcept {
    rises();
    at(as_what, p).add(n, bytes, requested);
    bytes_left_.add(p, -bytes), requested_left_.add(p, -requested), blocks_left_.add(p, -n), cached_left_.add(p, bytes);
    if (!shared_) [[likely]]
      return;
    credit_ -= bytes, credit_blocks_ -= n;
    if ((credit_ | credit_blocks_) < 0) [[unlikely]]
      publish();
  }
  [[gnu::always_inline]] void give(size_pool p, std::int64_t n, std::int64_t bytes, std::int64_t requested,
                                   pools& as_what) noexcept {
    falls();
    at(as_what, p).add(n, bytes, requested);
  }
  [[gnu::always_inline]] void rises() noexcept {
    if (cached_left_.least() < 0) [[unlikely]] {
      if (!rising_)
        note_cached();
    }
    rising_ = true;
  }
  [[gnu::always_inline]] void falls() noexcept {  // some level falls from here on
    if (rooms_up() < 0) [[unlikely]] {
      if (rising_)
        note_peaks();
    }
    rising_ = false;
  }
  // At least how far all levels of that pool fell.
  [[gnu::always_inline]] void fell(size_pool p, std::int64_t n, std::int64_t bytes, std::int64_t requested) noexcept {
    bytes_left_.add(p, bytes), requested_left_.add(p, requested), blocks_left_.add(p, n);
  }
  [[gnu::always_inline]] void cached_rose(size_pool p, std::int64_t bytes) noexcept { cached_left_.add(p, -bytes); }
  [[gnu::always_inline]] void regain(std::size_t bytes) noexcept {
    if (!shared_) [[likely]]
      return;
    credit_ += as(bytes), ++credit_blocks_;
    if (credit_ > most_credit_) [[unlikely]]
      publish();
  }
  void drift(std::size_t bytes) noexcept {  // some levels fell, not all
    drifted_ += as(bytes);
    if (drifted_ > most_drift_ && shared_)
      publish();
  }
  void map(size_pool p, std::int64_t bytes) noexcept {
    mapped_[index(p)].add(bytes);
    if (bytes > 0)
      note_cached();
  }
  std::int64_t of(pools const& s, std::size_t p, value sums::*what) const noexcept {
    return p == all ? (s[0].*what).get() + (s[1].*what).get() : (s[p].*what).get();
  }
  std::int64_t live(std::size_t p, value sums::*what) const noexcept {
    return of(taken_, p, what) - of(given_, p, what) + of(drawn_, p, what) - of(returned_, p, what);
  }
  std::int64_t pending(std::size_t p) const noexcept {
    return of(pending_, p, &sums::bytes) + (p == index(size_pool::large) ? 0 : sent_.bytes.get()) -
           of(reclaimed_, p, &sums::bytes);
  }
  std::int64_t cached(std::size_t p) const noexcept {
    std::int64_t const in_caches =
        alone_.get() && p != index(size_pool::large)
            ? of(drawn_, p, &sums::bytes) - of(returned_, p, &sums::bytes) + sent_.bytes.get() - out_.bytes.get()
            : 0;
    return (p == all ? mapped_[0].get() + mapped_[1].get() : mapped_[p].get()) - live(p, &sums::bytes) - pending(p) +
           in_caches;
  }
  level_values current() const noexcept;
  level_values peaks() const noexcept {
    level_values out = current();
    for (std::size_t k = 0; k < levels; ++k) {
      for (std::size_t p = 0; p < 3; ++p)
        out[k][p] = std::max(out[k][p], peaks_[k][p].get());
    }
    return out;
  }
  void note_peaks() noexcept;
  void note_cached() noexcept;
  std::int64_t rooms_up() const noexcept {
    return bytes_left_.least() | requested_left_.least() | blocks_left_.least();
  }
  void add(change const& out, change const& deferred) noexcept;
  grant left() noexcept;
  void lower_rooms(grant const&, int sign) noexcept;
  bool take_back() noexcept;  // ends the setting aside. False: nothing was
  // Of the allowed error of a peak, 7/16 is slack to rise, 7/16 to fall and 1/8 to drift before a report.
  [[gnu::noinline]] void publish() noexcept {
    auto const now = current();
    std::int64_t const active_bytes = now[static_cast<std::size_t>(level::active_bytes)][all];
    shared_->publish(now, published_, active_bytes / 8 * 7 / 16, slack_bytes * 7 / 16, slack_blocks);
    credit_ = published_.slack, credit_blocks_ = published_.slack_blocks, drifted_ = 0;
    most_credit_ = 2 * published_.slack, most_drift_ = published_.slack / 4;
  }

  // How far the levels of small, large and all may rise before one exceeds its noted peak. least() < 0: one
  // has, since set(). Large blocks change one number, the lower of large's and all's, as both move alike.
  class headroom {
   public:
    [[gnu::always_inline]] void add(size_pool p, std::int64_t by) noexcept {
      if (p == size_pool::large)
        near_.add(by);
      else
        add_small(by);
    }
    std::int64_t least() const noexcept { return near_.get() | small_passed_; }
    std::int64_t near() const noexcept { return near_.get(); }  // as least(), if only large has changed
    // How far small may rise if it gets 1/parts of what is left of all. Requires: least() >= 0
    std::int64_t left_of_small(int parts) const noexcept {
      return std::min(small_, (near_.get() + std::max<std::int64_t>(0, beyond_)) / parts);
    }
    void set(by_pool const& left) noexcept {
      near_.set(std::min(left[1], left[2])), small_ = left[0], beyond_ = left[2] - left[1], small_passed_ = 0;
    }

   private:
    [[gnu::always_inline]] void add_small(std::int64_t by) noexcept {
      near_.add(std::min<std::int64_t>(0, beyond_ + by) - std::min<std::int64_t>(0, beyond_));
      small_ += by, beyond_ += by;
      small_passed_ |= small_ | near_.get();
    }
    // Invariant: near_ is what is left of large, plus min(0, beyond_). So near_ plus max(0, beyond_) is
    // left of all.
    value near_;                           // a cell, so that the compiler does not merge stores to two rooms
    std::int64_t small_ = 0, beyond_ = 0;  // beyond_: what is left of all, less what is left of large
    std::int64_t small_passed_ = 0;        // below 0: after a change of small, small_ or near_ was
  };
  // What every call for a large block reads comes first, in few cache lines.
  alignas(64) headroom bytes_left_;
  headroom requested_left_, blocks_left_, cached_left_;
  pools taken_{};
  shared_levels* shared_ = nullptr;
  bool rising_ = false;     // the last change was an allocation: peaks may be higher than noted
  bool set_aside_ = false;  // aside_, in all rooms. Invariant: no room is used up at the end of an owner's call
  base::single_writer<bool> alone_{true};  // read without the lock by the sum over all heap_counters
  pools given_{};
  value free_blocks_made_, free_blocks_gone_, free_blocks_peak_;
  pools pending_{}, reclaimed_{}, drawn_{}, returned_{};
  sums sent_{};              // small: deferred frees that became pending; the caches counted them before
  sums out_{}, deferred_{};  // small: as in absorb()
  struct left_now {          // [0] small, [1] all: how far to each peak, and how far cached bytes may rise
    bool known = false;      // exact, and nothing has changed since
    std::array<std::array<std::int64_t, 2>, levels> up{};
    std::array<std::int64_t, 2> down{};
    grant least() const noexcept;
  } left_;
  grant aside_;
  std::int64_t large_seen_ = 0;  // count of large allocations and frees at the last grant
  std::array<value, 2> mapped_{};
  std::array<std::array<value, 3>, levels> peaks_{};
  std::array<value, 3> pending_peak_{}, cached_peak_{};
  // how far the level may rise before the next report
  std::int64_t credit_ = 0, credit_blocks_ = 0, most_credit_ = 0, drifted_ = 0, most_drift_ = 0;
  shared_levels::published_levels published_;
};

class device_counters {
 public:
  // Bytes are charged before they are requested from the driver, and count as reserved once gave() confirms
  // them. Returns: false, without a change, if reserved would exceed the limit.
  bool charge(std::size_t bytes) {
    lock_guard hold(lock_);
    if (limit_ && charged() + bytes > limit_)
      return false;
    under_way_ += bytes;
    return true;
  }
  // Charges as many of `bytes`, in multiples of `unit`, as the limit and `most` in all permit.
  std::size_t charge_within(std::size_t bytes, std::size_t most, std::size_t unit) {
    lock_guard hold(lock_);
    if (limit_)
      most = std::min(most, limit_);
    std::size_t const now = charged(), taken = most > now ? std::min(bytes, most - now) / unit * unit : 0;
    under_way_ += taken;
    return taken;
  }
  void gave(std::size_t bytes, std::size_t refused) {  // Requires: both were charged
    lock_guard hold(lock_);
    WEIR_RULE(under_way_ >= bytes + refused, "charged bytes fall below zero");
    under_way_ -= bytes + refused;
    if (bytes)
      add(now_.reserved_bytes, false, as(bytes));
  }
  void refund(std::size_t bytes) {  // released to the driver
    lock_guard hold(lock_);
    WEIR_RULE(now_.reserved_bytes.all.current >= as(bytes), "charged bytes fall below zero");
    add(now_.reserved_bytes, false, -as(bytes));
  }
  void handle_mapped() {
    edit([](memory_statistics& n) { add(n.segment, false, 1), ++n.pages_mapped; });
  }
  // It was counted as gone, and is mapped elsewhere.
  void handle_moved() {
    edit([](memory_statistics& n) { add(n.segment, false, 1), ++n.handles_moved; });
  }
  void handle_gone() {
    edit([](memory_statistics& n) { add(n.segment, false, -1); });
  }
  void run_cut(std::size_t bytes) { move_run(as(bytes)); }  // an arena block becomes a slab's run
  void run_returned(std::size_t bytes) { move_run(-as(bytes)); }
  void retried() {
    edit([](memory_statistics& n) { ++n.num_alloc_retries; });
  }
  void recovered_by(std::size_t rung) {
    edit([rung](memory_statistics& n) { ++n.recovered_by[rung]; });
  }
  void ran_out() {
    edit([](memory_statistics& n) { ++n.num_ooms; });
  }
  void waited(bool behind_all) {
    edit([&](memory_statistics& n) { ++n.waits_inserted, n.late_waits += behind_all; });
  }
  void fenced() {
    edit([](memory_statistics& n) { ++n.fences; });
  }
  // An allocation had to call the driver for memory.
  void missed() {
    edit([&](memory_statistics&) { ++misses_; });
  }

  void set_limit(std::size_t bytes) {
    lock_guard hold(lock_);
    limit_ = bytes;
  }
  std::size_t reserved() const {  // includes charged bytes
    lock_guard hold(lock_);
    return charged();
  }
  std::size_t under_way() const {  // bytes charged and not yet made, or refused
    lock_guard hold(lock_);
    return under_way_;
  }
  std::size_t limit() const {
    lock_guard hold(lock_);
    return limit_;
  }
  shared_levels& shared() noexcept { return shared_; }

  // The sum over all heap_counters; `caches`: what thread caches know better.
  memory_statistics read(std::span<heap_counters const* const> heap_counts, cached_slots const& caches) const {
    lock_guard hold(lock_);
    memory_statistics out = since(sum(heap_counts, caches), base_);
    out.cache_hits = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, out.allocation.all.allocated - static_cast<std::int64_t>(misses_)));
    return out;
  }
  // Requires: every heap_counters was reset under its memory's lock, see heap_counters::reset_peak.
  void reset_peak() {
    edit([this](memory_statistics& n) {
      for (statistic_by_size* s : {&n.segment, &n.reserved_bytes}) {
        for (statistic* t : parts(*s))
          t->peak = t->current;
      }
      shared_.lower();
    });
  }
  void reset_accumulated(std::span<heap_counters const* const> heap_counts, cached_slots const& caches) {
    lock_guard hold(lock_);
    misses_ = 0;
    now_.recovered_by = {};
    now_.num_ooms = now_.num_alloc_retries = now_.fences = now_.waits_inserted = now_.late_waits = now_.pages_mapped =
        now_.handles_moved = 0;
    base_ = sum(heap_counts, caches);
  }

 private:
  using lock_guard = base::lock_guard;
  static std::int64_t as(std::size_t bytes) noexcept { return static_cast<std::int64_t>(bytes); }
  // `n` with totals counted from `base` on.
  static memory_statistics since(memory_statistics n, memory_statistics base) noexcept {
    auto const now = each(n), then = each(base);
    for (std::size_t i = 0; i < now.size(); ++i) {
      auto const a = parts(*now[i]), b = parts(*then[i]);
      for (std::size_t p = 0; p < 3; ++p)
        a[p]->allocated -= b[p]->allocated, a[p]->freed -= b[p]->freed;
    }
    return n;
  }
  class adder;
  memory_statistics sum(std::span<heap_counters const* const> heap_counts,
                        cached_slots const&) const noexcept;  // Requires: lock_
  template <class Do>
  void edit(Do act) {
    lock_guard hold(lock_);
    act(now_);
  }
  // Requires: lock_
  std::size_t charged() const noexcept {
    return static_cast<std::size_t>(now_.reserved_bytes.all.current) + under_way_;
  }
  void move_run(std::int64_t bytes) {
    lock_guard hold(lock_);
    add(now_.reserved_bytes.small, bytes);
    add(now_.reserved_bytes.large, -bytes);
  }

  mutable base::mutex lock_;
  memory_statistics now_{};                // segment, reserved_bytes and plain numbers; heap_counters have the rest
  memory_statistics base_{};               // totals at the last reset
  std::size_t limit_ = 0, under_way_ = 0;  // bytes; under_way_: charged, not yet confirmed or refused
  std::uint64_t misses_ = 0;
  shared_levels shared_;
};

}  // namespace weir::observe
