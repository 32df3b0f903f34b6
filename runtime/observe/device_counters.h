// Counts of one device's memory. What happens often is counted by a tally, one for each stream's memory, and
// summed on reading; what asks the driver is counted in one place, where the limit is held.
// Threads: a tally is written by whoever holds the lock of its memory and read by any; counters are for any.
//
// Invariant: reserved = allocated + pending + cached, in bytes, for small, large and all.
// Peaks. Of a device with one stream that one thread allocates on they are exact: that thread's cache may
// raise a level, or the bytes cached, only as far as the tally granted (unpublished.h). With several threads or
// streams what thread caches hold counts as taken, and bytes that were asked for are known as of the last
// time that a thread held the lock: a peak errs by at most what those caches hold. With several streams a
// tally's level is known to the others with some slack as well: a peak errs upward by at most an eighth of
// its bytes for each of them, `slack_bytes` for each of four or in equal shares for more, or an eighth of the
// peak for all of them together: a quarter of that in equal shares, the rest by what each holds. No peak of
// bytes is above that of what was reserved.
// Peaks of what is pending, cached or in pieces are the sum of the tallies' own peaks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "runtime/base/sync.h"
#include "runtime/observe/stat_math.h"
#include "runtime/observe/unpublished.h"

namespace weir::observe {

enum class size_pool : std::uint8_t { small, large };  // small: a slot of a slab

// What thread caches know better than the tally of their memory: it counts the slots they hold as taken.
struct cached_slots {
  std::int64_t held = 0, held_bytes = 0;   // now in a cache
  std::int64_t waiting_bytes = 0;                        // of those that wait for another stream in an outbox
  // of slots taken from caches less those given back there: their size less what was asked
  std::int64_t unused_bytes = 0;
  // ever
  std::int64_t taken = 0, total_bytes = 0, taken_requested = 0, given = 0, given_bytes = 0, given_requested = 0;
  std::int64_t waited = 0, waited_bytes = 0;             // of those given: in an outbox, ever
  cached_slots& operator+=(cached_slots const& o) noexcept {
    held += o.held, held_bytes += o.held_bytes, waiting_bytes += o.waiting_bytes, waited += o.waited,
        waited_bytes += o.waited_bytes;
    unused_bytes += o.unused_bytes;
    taken += o.taken, total_bytes += o.total_bytes, taken_requested += o.taken_requested;
    given += o.given, given_bytes += o.given_bytes, given_requested += o.given_requested;
    return *this;
  }
};

// The levels that have a peak and change with every allocation, of small, large and all.
enum class level : std::uint8_t { allocation, active, allocated_bytes, active_bytes, requested_bytes };
inline constexpr std::size_t levels = 5;
using by_pool = std::array<std::int64_t, 3>;  // small, large, all
using level_values = std::array<by_pool, levels>;

// The tallies of one device add up here when there are several of them.
class shared_levels {
 public:
  void join() noexcept {
    base::lock_guard const hold(lock_);
    ++heaps_;
  }
  // What a tally has told of itself before, and the number that its levels stay below without telling more.
  struct published_levels {
    level_values upto{};
    std::int64_t slack = 0, slack_blocks = 0;  // at the last telling: so much any level of bytes may rise, of blocks
    std::int64_t extra = 0;              // what it then had of an eighth of the peak beyond its equal share
  };
  // A tally is at `now` and may rise by some slack from now on.
  void publish(level_values const& now, published_levels& last, std::int64_t own_slack, std::int64_t slack_bytes,
            std::int64_t slack_blocks) noexcept {
    base::lock_guard const hold(lock_);
    std::int64_t const n = std::max(heaps_, few);
    constexpr auto most = static_cast<std::size_t>(level::active_bytes);
    std::int64_t const all = peaks_[most][2] / 8, by_cached = all - all / 4, held = sums_[most][2] >> 10;
    extra_ -= last.extra;
    last.extra = std::clamp<std::int64_t>(held > 0 ? by_cached / held * (last.upto[most][2] >> 10) : 0, 0,
                                          std::max<std::int64_t>(0, by_cached - extra_));
    extra_ += last.extra;
    std::int64_t const share = all / 4 / std::max<std::int64_t>(1, heaps_) + last.extra;
    last.slack = std::max({own_slack, slack_bytes * few / n, share * 7 / 16});
    last.slack_blocks = slack_blocks * few / n;
    auto const publish_level = [&](std::size_t k, std::int64_t slack) {
#pragma GCC unroll 3
      for (std::size_t p = 0; p < 3; ++p) {
        std::int64_t const upto = now[k][p] + slack, sum = sums_[k][p] + (upto - last.upto[k][p]), peak = peaks_[k][p];
        sums_[k][p] = sum;
        last.upto[k][p] = upto;
        peaks_[k][p] = sum > peak ? sum : peak;
      }
    };
    constexpr auto first_of_bytes = static_cast<std::size_t>(level::allocated_bytes);
    for (std::size_t k = 0; k < first_of_bytes; ++k) publish_level(k, last.slack_blocks);
    for (std::size_t k = first_of_bytes; k < levels; ++k) publish_level(k, last.slack);
  }
  void raise(level_values const& to) noexcept {
    base::lock_guard const hold(lock_);
    for (std::size_t k = 0; k < levels; ++k) {
      for (std::size_t p = 0; p < 3; ++p) peaks_[k][p] = std::max(peaks_[k][p], to[k][p]);
    }
  }
  void lower() noexcept {
    base::lock_guard const hold(lock_);
    peaks_ = sums_;
  }
  std::int64_t peak(level k, std::size_t p) const noexcept {
    base::lock_guard const hold(lock_);
    return peaks_[static_cast<std::size_t>(k)][p];
  }

 private:
  mutable base::mutex lock_;  // taken last
  level_values sums_{}, peaks_{};
  static constexpr std::int64_t few = 4;
  std::int64_t heaps_ = 0;
  std::int64_t extra_ = 0;    // bytes: the sum of the tallies' own
};

// Of one stream's memory. Sums that only grow;
// what is now is their difference, and peaks are looked at where the direction turns.
class heap_counters {
 public:
  static constexpr std::int64_t slack_bytes = 8 << 20, slack_blocks = 4096;
  heap_counters() = default;
  heap_counters(heap_counters const&) = delete;

  // These two happen with every block of an arena:
  // inline, so that what is known of the pool there is not asked here.
  [[gnu::always_inline]] void allocated(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    take(p, 1, as(rounded), as(requested), taken_);
  }
  // usable by its stream at once
  [[gnu::always_inline]] void freed(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    give(p, 1, as(rounded), as(requested), given_);
    regain(requested);
    fell(p, 1, as(rounded), as(requested));
    cached_rose(p, as(rounded));
  }
  // given back, but other streams may still use it
  void freed_pending(size_pool p, std::size_t rounded, std::size_t requested) noexcept {
    give(p, 1, as(rounded), as(requested), given_);
    at(pending_, p).add(1, as(rounded), 0);
    for (std::size_t q : {index(p), all}) pending_peak_[q].raise(pending(q));
    drift(rounded);
  }
  // Slots come home from an outbox, and others may still use them.
  void sent_home(std::int64_t slots, std::int64_t bytes) noexcept {
    alone_.get() ? returned_[index(size_pool::small)].add(slots, bytes, bytes)
                 : give(size_pool::small, slots, bytes, bytes, returned_);
    sent_.add(slots, bytes, 0);
    for (std::size_t q : {index(size_pool::small), all}) pending_peak_[q].raise(pending(q));
    drift(static_cast<std::size_t>(bytes));
  }
  // So many bytes wait in outboxes beside what is held. Before any of that is held no more:
  // what was pending at once is a peak then.
  void also_waiting(std::int64_t bytes) noexcept {
    for (std::size_t q : {index(size_pool::small), all}) pending_peak_[q].raise(pending(q) + bytes);
  }
  void pending_no_more(size_pool p, std::size_t rounded, std::size_t blocks = 1) noexcept {
    falls();
    at(reclaimed_, p).add(as(blocks), as(rounded), 0);
    drift(rounded);
    cached_rose(p, as(rounded));
  }
  // Slots go to a thread's cache, or come back from one.
  void drawn(std::int64_t slots, std::size_t bytes) noexcept {
    if (alone_.get()) return at(drawn_, size_pool::small).add(slots, as(bytes), as(bytes));
    take(size_pool::small, slots, as(bytes), as(bytes), drawn_);
  }
  void returned(std::int64_t slots, std::size_t bytes) noexcept {
    if (alone_.get()) return at(returned_, size_pool::small).add(slots, as(bytes), as(bytes));
    give(size_pool::small, slots, as(bytes), as(bytes), returned_);
    regain(bytes);
    fell(size_pool::small, slots, as(bytes), as(bytes));
    cached_rose(size_pool::small, as(bytes));
  }
  // What a thread's cache did since it last told: taken less given back; of that, put into its outbox.
  void absorb(change const& out, change const& deferred) noexcept;
  // Alone: told(), and how far the one cache may go from there without telling. Requires: nothing else was
  // counted since the last answer, or since told()
  grant left_after(change const& out, change const& deferred) noexcept;
  // The one cache has a grant that is set aside in all rooms: large blocks come and go beside it, and it
  // tells nothing. After each of these calls its owner asks whether a room is used up, and if so tells.
  bool sets_aside() const noexcept { return set_aside_; }
  bool is_used_up() const noexcept {
    return set_aside_ && (bytes_left_.near() | requested_left_.near() | blocks_left_.near() | cached_left_.near()) < 0;
  }
  // Alone: what the one cache holds is known to be free, for it asks before a peak may pass.
  // Else what caches hold counts as taken.
  bool is_alone() const noexcept { return alone_.get(); }
  void set_alone(bool to) noexcept;
  bool is_shared() const noexcept { return shared_ != nullptr; }
  void mapped(std::int64_t bytes) noexcept { map(size_pool::large, bytes); }
  void run_cut(std::int64_t bytes) noexcept {  // negative: returned
    mapped_[bytes > 0 ? 1 : 0].add(bytes > 0 ? -bytes : bytes);  // first what goes: all of it was mapped once
    map(bytes > 0 ? size_pool::small : size_pool::large, bytes > 0 ? bytes : -bytes);
  }
  // Without a branch: whether a block leaves a piece behind nobody can foretell.
  void free_blocks(std::int64_t change) noexcept {
    std::int64_t const gone = change & (change >> 63);
    free_blocks_made_.add(change - gone);
    free_blocks_gone_.add(-gone);
    std::int64_t const now = free_blocks_made_.get() - free_blocks_gone_.get(), most = free_blocks_peak_.get();
    free_blocks_peak_.set(now > most ? now : most);
  }
  std::int64_t bytes_live() const noexcept { return live(all, &sums::bytes); }
  std::int64_t bytes_live(size_pool p) const noexcept { return live(index(p), &sums::bytes); }
  std::int64_t blocks_live(size_pool p) const noexcept { return live(index(p), &sums::blocks); }
  std::int64_t bytes_pending() const noexcept { return pending(all); }
  std::int64_t bytes_mapped() const noexcept { return mapped_[0].get() + mapped_[1].get(); }
  // bytes, since peaks were reset
  std::int64_t most_live() const noexcept { return std::max(peaks_[2][all].get(), live(all, &sums::bytes)); }
  // From now on there are others: what this one holds is told to them.
  void share(shared_levels& with) noexcept {
    if (shared_) return publish();  // with less slack, as there are more
    set_alone(false);
    shared_ = &with;
    with.join();
    note_peaks();
    with.raise(peaks());
    publish();
  }
  void reset_peak() noexcept {
    auto const now = current();
    for (std::size_t k = 0; k < levels; ++k) {
      for (std::size_t p = 0; p < 3; ++p) peaks_[k][p].set(now[k][p]);
    }
    for (std::size_t p = 0; p < 3; ++p) pending_peak_[p].set(pending(p)), cached_peak_[p].set(cached(p));
    for (headroom* r : {&bytes_left_, &requested_left_, &blocks_left_, &cached_left_}) r->set({});
    free_blocks_peak_.set(free_blocks_made_.get() - free_blocks_gone_.get());
    if (shared_) publish();
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
    if (!shared_) [[likely]] return;
    credit_ -= bytes, credit_blocks_ -= n;
    if ((credit_ | credit_blocks_) < 0) [[unlikely]] publish();
  }
  [[gnu::always_inline]] void give(size_pool p, std::int64_t n, std::int64_t bytes, std::int64_t requested,
                                   pools& as_what) noexcept {
    falls();
    at(as_what, p).add(n, bytes, requested);
  }
  [[gnu::always_inline]] void rises() noexcept {
    if (cached_left_.least() < 0) [[unlikely]] {
      if (!rising_) note_cached();
    }
    rising_ = true;
  }
  [[gnu::always_inline]] void falls() noexcept {  // from here on some level does
    if (rooms_up() < 0) [[unlikely]] {
      if (rising_) note_peaks();
    }
    rising_ = false;
  }
  // What all levels of that pool fell by at least, what its cached bytes rose by.
  [[gnu::always_inline]] void fell(size_pool p, std::int64_t n, std::int64_t bytes, std::int64_t requested) noexcept {
    bytes_left_.add(p, bytes), requested_left_.add(p, requested), blocks_left_.add(p, n);
  }
  [[gnu::always_inline]] void cached_rose(size_pool p, std::int64_t bytes) noexcept { cached_left_.add(p, -bytes); }
  [[gnu::always_inline]] void regain(std::size_t bytes) noexcept {
    if (!shared_) [[likely]] return;
    credit_ += as(bytes), ++credit_blocks_;
    if (credit_ > most_credit_) [[unlikely]] publish();
  }
  void drift(std::size_t bytes) noexcept {  // some levels fell, not all
    drifted_ += as(bytes);
    if (drifted_ > most_drift_ && shared_) publish();
  }
  void map(size_pool p, std::int64_t bytes) noexcept {
    mapped_[index(p)].add(bytes);
    if (bytes > 0) note_cached();
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
      for (std::size_t p = 0; p < 3; ++p) out[k][p] = std::max(out[k][p], peaks_[k][p].get());
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
  void set_aside(grant const&, int sign) noexcept;
  bool take_back() noexcept;  // what was set aside. False: nothing was
  // Of what a peak may err by, 7/16 is room to rise, 7/16 to fall,
  // 1/8 to drift before the others are told again.
  [[gnu::noinline]] void publish() noexcept {
    auto const now = current();
    shared_->publish(now, published_, now[3][all] / 8 * 7 / 16, slack_bytes * 7 / 16, slack_blocks);
    credit_ = published_.slack, credit_blocks_ = published_.slack_blocks, drifted_ = 0;
    most_credit_ = 2 * published_.slack, most_drift_ = published_.slack / 4;
  }

  pools taken_{}, given_{}, pending_{}, reclaimed_{}, drawn_{}, returned_{};
  sums sent_{};                             // of small: held in an outbox before, which the caches count
  sums out_{}, deferred_{};                   // of small: as told()
  base::single_writer<bool> alone_{true};  // read without the lock by who sums all
  struct left_now {  // of small and of all: up to each peak, and what cached bytes may rise
    bool known = false;  // exactly, and nothing has changed since
    std::array<std::array<std::int64_t, 2>, levels> up{};
    std::array<std::int64_t, 2> down{};
    grant least() const noexcept;
  } left_;
  grant aside_;
  std::int64_t large_seen_ = 0;  // large blocks that had come and gone when it was granted
  bool set_aside_ = false;       // aside_, in all rooms. Invariant: no room is used up when a call of the owner's ends
  std::array<value, 2> mapped_{};
  std::array<std::array<value, 3>, levels> peaks_{};
  std::array<value, 3> pending_peak_{}, cached_peak_{};
  value free_blocks_made_, free_blocks_gone_, free_blocks_peak_;
  bool rising_ = false;          // the last change was an allocation: peaks may be higher than noted
  // How much the levels of small, large, all may rise at least before one is above its noted peak; least() <
  // 0: one has been since set(). What large blocks change, all the time, is one number: of large's and all's
  // the lower, for both move alike then.
  class headroom {
   public:
    [[gnu::always_inline]] void add(size_pool p, std::int64_t by) noexcept {
      if (p == size_pool::large) near_.add(by);
      else add_small(by);
    }
    std::int64_t least() const noexcept { return near_.get() | small_passed_; }
    std::int64_t near() const noexcept { return near_.get(); }  // as least(), after changes of large alone
    // What small may rise by if it may have one part in `parts` of what is left of all.
    // Requires: least() >= 0
    std::int64_t left_of_small(int parts) const noexcept {
      return std::min(small_, (near_.get() + std::max<std::int64_t>(0, beyond_)) / parts);
    }
    void set(by_pool const& left) noexcept {
      near_.set(std::min(left[1], left[2])), small_ = left[0], beyond_ = left[2] - left[1], small_passed_ = 0;
    }

   private:
    void add_small(std::int64_t by) noexcept {
      near_.add(std::min<std::int64_t>(0, beyond_ + by) - std::min<std::int64_t>(0, beyond_));
      small_ += by, beyond_ += by;
      small_passed_ |= small_ | near_.get();
    }
    value near_;                                   // a cell: two rooms are not to be one store
    std::int64_t small_ = 0, beyond_ = 0;         // what all's is more than large's
    std::int64_t small_passed_ = 0;
  };
  headroom bytes_left_, requested_left_, blocks_left_, cached_left_;
  // how much the level may still rise before the others must be told
  std::int64_t credit_ = 0, credit_blocks_ = 0, most_credit_ = 0, drifted_ = 0, most_drift_ = 0;
  shared_levels* shared_ = nullptr;
  shared_levels::published_levels published_;
};

class device_counters {
 public:
  // Bytes are asked of the driver only once they are charged here. Ensures: false and no change if reserved
  // would pass the limit. What is charged counts as reserved from when gave() says that the driver gave it.
  bool charge(std::size_t bytes) {
    lock_guard hold(lock_);
    if (limit_ && charged() + bytes > limit_) return false;
    under_way_ += bytes;
    return true;
  }
  // The same for as much of `bytes`, in multiples of `unit`, as neither the limit nor `most` in all forbids.
  std::size_t charge_within(std::size_t bytes, std::size_t most, std::size_t unit) {
    lock_guard hold(lock_);
    if (limit_) most = std::min(most, limit_);
    std::size_t const now = charged(), taken = most > now ? std::min(bytes, most - now) / unit * unit : 0;
    under_way_ += taken;
    return taken;
  }
  void gave(std::size_t bytes, std::size_t refused) {  // Requires: both were charged
    lock_guard hold(lock_);
    under_way_ -= bytes + refused;
    if (bytes) add(now_.reserved_bytes, false, as(bytes));
  }
  void refund(std::size_t bytes) {  // the driver has it back
    lock_guard hold(lock_);
    add(now_.reserved_bytes, false, -as(bytes));
  }
  void handle_mapped() {
    edit([](memory_statistics& n) { add(n.segment, false, 1), ++n.pages_mapped; });
  }
  // it was gone, and is mapped elsewhere
  void handle_moved() {
    edit([](memory_statistics& n) { add(n.segment, false, 1); });
  }
  void handle_gone() {
    edit([](memory_statistics& n) { add(n.segment, false, -1); });
  }
  void run_cut(std::size_t bytes) { move_run(as(bytes)); }        // a stretch of the arena becomes a slab's run
  void run_returned(std::size_t bytes) { move_run(-as(bytes)); }
  void retried() { edit([](memory_statistics& n) { ++n.num_alloc_retries; }); }
  void recovered_by(std::size_t rung) { edit([rung](memory_statistics& n) { ++n.recovered_by[rung]; }); }
  void ran_out() { edit([](memory_statistics& n) { ++n.num_ooms; }); }
  void waited(bool behind_all) { edit([&](memory_statistics& n) { ++n.waits_inserted, n.late_waits += behind_all; }); }
  void fenced() { edit([](memory_statistics& n) { ++n.fences; }); }
  void missed() { edit([&](memory_statistics&) { ++misses_; }); }  // an allocation had to ask the driver for memory

  void set_limit(std::size_t bytes) {
    lock_guard hold(lock_);
    limit_ = bytes;
  }
  std::size_t reserved() const {  // or charged
    lock_guard hold(lock_);
    return charged();
  }
  std::size_t limit() const {
    lock_guard hold(lock_);
    return limit_;
  }
  shared_levels& shared() noexcept { return shared_; }

  // What all tallies say together, `lent` being what thread caches know better.
  memory_statistics read(std::span<heap_counters const* const> heap_counts, cached_slots const& caches) const {
    lock_guard hold(lock_);
    memory_statistics out = since(sum(heap_counts, caches), base_);
    out.cache_hits = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, out.allocation.all.allocated - static_cast<std::int64_t>(misses_)));
    return out;
  }
  // Requires: the locks of all tallies' memories have been taken in turn to reset them,
  // see tally::reset_peak.
  void reset_peak() {
    edit([this](memory_statistics& n) {
      for (statistic_by_size* s : {&n.segment, &n.reserved_bytes}) {
        for (statistic* t : parts(*s)) t->peak = t->current;
      }
      shared_.lower();
    });
  }
  void reset_accumulated(std::span<heap_counters const* const> heap_counts, cached_slots const& caches) {
    lock_guard hold(lock_);
    misses_ = 0;
    now_.recovered_by = {};
    now_.num_ooms = now_.num_alloc_retries = now_.fences = now_.waits_inserted = now_.late_waits = now_.pages_mapped =
        0;
    base_ = sum(heap_counts, caches);
  }

 private:
  using lock_guard = base::lock_guard;
  static std::int64_t as(std::size_t bytes) noexcept { return static_cast<std::int64_t>(bytes); }
  // The same with the totals counted from `base` on.
  static memory_statistics since(memory_statistics n, memory_statistics base) noexcept {
    auto const now = each(n), then = each(base);
    for (std::size_t i = 0; i < now.size(); ++i) {
      auto const a = parts(*now[i]), b = parts(*then[i]);
      for (std::size_t p = 0; p < 3; ++p) a[p]->allocated -= b[p]->allocated, a[p]->freed -= b[p]->freed;
    }
    return n;
  }
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
  memory_statistics now_{};   // segment, reserved_bytes and the plain numbers; the rest is in the tallies
  memory_statistics base_{};  // totals when they were last reset
  std::size_t limit_ = 0, under_way_ = 0;  // bytes; under way: charged, and not yet given nor refused
  std::uint64_t misses_ = 0;
  shared_levels shared_;
};

}  // namespace weir::observe
