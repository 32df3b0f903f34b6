// The sum over all heap_counters of a device, with torch's names.
// Threads: any.
#include "runtime/observe/device_counters.h"

#include <algorithm>
#include <utility>

namespace weir::observe {

void heap_counters::add(change const& out, change const& deferred) noexcept {
  out_.add(out.blocks, out.bytes, out.requested);
  deferred_.add(deferred.blocks, deferred.bytes, deferred.requested);
  // Slots of several caches count from when they were drawn: nothing rises here.
  if (!alone_.get())
    return;
  bytes_left_.add(size_pool::small, -out.bytes);
  requested_left_.add(size_pool::small, -out.requested);
  blocks_left_.add(size_pool::small, -out.blocks);
  cached_left_.add(size_pool::small, out.bytes);
}

void heap_counters::absorb(change const& out, change const& deferred) noexcept {
  bool const was_aside = take_back();
  // No grant is set aside in the rooms: the levels of the last report may be peaks. Since then the cache
  // stayed within its grant.
  if (alone_.get() && !was_aside) {
    if (rising_ && rooms_up() < 0)
      note_peaks();
    if (!rising_ && cached_left_.least() < 0)
      note_cached();
  }
  left_.known = false;
  add(out, deferred);
  if (was_aside) {  // all levels were within their peaks until this call
    if (rooms_up() < 0)
      note_peaks();
    if (cached_left_.least() < 0)
      note_cached();
  }
  if (alone_.get())
    return;
  // Several caches: only requested bytes change. A slot that was drawn counts whole, until a report says what
  // was requested of it.
  std::int64_t const rise = out.requested - out.bytes + deferred.bytes - deferred.requested;
  if (rise < 0) {
    falls();  // after add(): the level of slots that still counted whole is not noted as a peak
  } else {
    requested_left_.add(size_pool::small, -rise);
    rising_ = true;
  }
  if (!shared_)
    return;
  credit_ -= std::max<std::int64_t>(0, rise);
  if (credit_ < 0)
    publish();
}

void heap_counters::lower_rooms(grant const& g, int sign) noexcept {
  bytes_left_.add(size_pool::small, -sign * g.up.bytes);
  requested_left_.add(size_pool::small, -sign * g.up.requested);
  blocks_left_.add(size_pool::small, -sign * g.up.blocks);
  cached_left_.add(size_pool::small, -sign * g.down_bytes);
}

bool heap_counters::take_back() noexcept {
  if (!set_aside_)
    return false;
  set_aside_ = false;
  lower_rooms(aside_, -1);
  return true;
}

// Grants what is left in the rooms, and sets it aside there. If a room was passed, the rooms are not exact:
// left_ is computed, and left_after() keeps it.
grant heap_counters::left() noexcept {
  if ((rooms_up() | cached_left_.least()) >= 0) {
    // While large blocks come and go, they keep half of what is left of all.
    std::size_t const large = index(size_pool::large);
    std::int64_t const came_and_went = taken_[large].blocks.get() + given_[large].blocks.get();
    int const parts = large_seen_ == came_and_went ? 1 : 2;
    large_seen_ = came_and_went;
    auto const share = [parts](headroom const& r, std::int64_t most) { return std::min(r.left_of_small(parts), most); };
    aside_ = {.up = {.blocks = share(blocks_left_, unpublished::most_blocks),
                     .bytes = share(bytes_left_, unpublished::most_bytes),
                     .requested = share(requested_left_, unpublished::most_bytes)},
              .down_bytes = share(cached_left_, unpublished::most_bytes)};
    lower_rooms(aside_, 1);
    set_aside_ = true;
    return aside_;
  }
  note_peaks(), note_cached();
  auto const now = current();
  for (std::size_t i = 0; i < 2; ++i) {
    std::size_t const p = i == 0 ? index(size_pool::small) : all;
    for (std::size_t k = 0; k < levels; ++k)
      left_.up[k][i] = peaks_[k][p].get() - now[k][p];
    left_.down[i] = cached_peak_[p].get() - cached(p);
  }
  left_.known = true;
  return left_.least();
}

grant heap_counters::left_after(change const& out, change const& deferred) noexcept {
  if (!left_.known) {
    // Within what was set aside, no level has passed its peak. Else absorb() raises peaks before it adds.
    if (take_back())
      add(out, deferred);
    else
      absorb(out, deferred);
    return left();
  }
  add(out, deferred);
  // How far each level rose, in the order of `level`. Blocks of deferred frees are not allocated, but still active:
  // `out` does not count them as freed.
  std::int64_t const by[levels] = {out.blocks - deferred.blocks, out.blocks, out.bytes - deferred.bytes, out.bytes,
                                   out.requested - deferred.requested};
  auto const rose = [](std::int64_t n, std::int64_t& left, value& peak) {
    left -= n;
    if (left >= 0)
      return;
    peak.add(-left);
    left = 0;
  };
  for (std::size_t i = 0; i < 2; ++i) {
    std::size_t const p = i == 0 ? index(size_pool::small) : all;
    for (std::size_t k = 0; k < levels; ++k)
      rose(by[k], left_.up[k][i], peaks_[k][p]);
    rose(-out.bytes, left_.down[i], cached_peak_[p]);
  }
  return left_.least();
}

grant heap_counters::left_now::least() const noexcept {
  auto const of = [&](level k) {
    return std::min(up[static_cast<std::size_t>(k)][0], up[static_cast<std::size_t>(k)][1]);
  };
  return {.up = {.blocks = std::min(of(level::allocation), of(level::active)),
                 .bytes = std::min(of(level::allocated_bytes), of(level::active_bytes)),
                 .requested = of(level::requested_bytes)},
          .down_bytes = std::min(down[0], down[1])};
}

void heap_counters::set_alone(bool to) noexcept {
  if (alone_.get() == to)
    return;
  // Before the change and after it: the levels are others then.
  note_peaks(), note_cached();
  alone_.set(to);
  note_peaks(), note_cached();
}

level_values heap_counters::current() const noexcept {
  level_values out;
  auto const of = [&](level k) -> by_pool& { return out[static_cast<std::size_t>(k)]; };
  for (std::size_t p = 0; p < all; ++p) {
    auto const live_of = [&](value sums::*what) { return (taken_[p].*what).get() - (given_[p].*what).get(); };
    of(level::allocation)[p] = live_of(&sums::blocks);
    of(level::active)[p] = of(level::allocation)[p] + pending_[p].blocks.get() - reclaimed_[p].blocks.get();
    of(level::allocated_bytes)[p] = live_of(&sums::bytes);
    of(level::active_bytes)[p] = of(level::allocated_bytes)[p] + pending_[p].bytes.get() - reclaimed_[p].bytes.get();
    of(level::requested_bytes)[p] = live_of(&sums::requested);
  }
  constexpr std::size_t small = 0;  // thread caches hold only small blocks
  auto const add = [&](level k, std::int64_t n) { of(k)[small] += n; };
  // One cache reports what its thread has. Of several, all slots that they drew count as live, free or not.
  if (alone_.get()) {
    std::int64_t const blocks = out_.blocks.get(), bytes = out_.bytes.get();
    add(level::allocation, blocks - deferred_.blocks.get());
    add(level::active, blocks);
    add(level::allocated_bytes, bytes - deferred_.bytes.get());
    add(level::active_bytes, bytes);
    add(level::requested_bytes, out_.requested.get() - deferred_.requested.get());
  } else {
    std::int64_t const blocks = drawn_[small].blocks.get() - returned_[small].blocks.get(),
                       bytes = drawn_[small].bytes.get() - returned_[small].bytes.get();
    add(level::allocation, blocks);
    add(level::active, blocks + sent_.blocks.get());
    add(level::allocated_bytes, bytes);
    add(level::active_bytes, bytes + sent_.bytes.get());
    add(level::requested_bytes,
        bytes + out_.requested.get() - out_.bytes.get() + deferred_.bytes.get() - deferred_.requested.get());
  }
  for (by_pool& l : out)
    l[all] = l[0] + l[1];
  return out;
}

void heap_counters::note_peaks() noexcept {
  auto const now = current();
  level_values left;
  for (std::size_t k = 0; k < levels; ++k) {
    for (std::size_t p = 0; p < 3; ++p) {
      peaks_[k][p].raise(now[k][p]);
      left[k][p] = peaks_[k][p].get() - now[k][p];
    }
  }
  // The room that both levels leave.
  auto const set = [&](headroom& r, level a, level b) {
    by_pool least = left[static_cast<std::size_t>(a)];
    for (std::size_t p = 0; p < 3; ++p)
      least[p] = std::min(least[p], left[static_cast<std::size_t>(b)][p]);
    r.set(least);
  };
  set(blocks_left_, level::allocation, level::active);
  set(bytes_left_, level::allocated_bytes, level::active_bytes);
  set(requested_left_, level::requested_bytes, level::requested_bytes);  // of one level
}

void heap_counters::note_cached() noexcept {
  by_pool left;
  for (std::size_t p = 0; p < 3; ++p) {
    std::int64_t const now = cached(p);
    cached_peak_[p].raise(now);
    left[p] = cached_peak_[p].get() - now;
  }
  cached_left_.set(left);
}

// One sum: the totals of each heap, then what thread caches know better, then the levels and peaks from both.
class device_counters::adder {
 public:
  explicit adder(memory_statistics const& counted) noexcept : out_(counted) {}
  adder(adder const&) = delete;

  void add_heap(heap_counters const& heap) noexcept {
    level_values const peaks = heap.peaks();
    for (std::size_t p = 0; p < heap_counters::all; ++p)
      add_totals(heap, p);
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t k = 0; k < levels; ++k)
        peak_[k][p] += peaks[k][p];
      pending_[p]->peak += heap.pending_peak_[p].get();
      cached_[p]->peak += std::max(heap.cached_peak_[p].get(), heap.cached(p));
    }
    for (statistic* s : {&out_.inactive.all, &out_.inactive.large}) {
      s->allocated += heap.free_blocks_made_.get();
      s->freed += heap.free_blocks_gone_.get();
      s->peak += heap.free_blocks_peak_.get();
    }
  }

  // Thread caches hold only small blocks.
  void add_caches(cached_slots const& caches) noexcept {
    for (std::size_t p : {std::size_t{0}, heap_counters::all}) {
      count(allocation_, level::allocation, p, caches.taken, caches.given);
      count(active_, level::active, p, caches.taken, caches.given);
      count(allocated_, level::allocated_bytes, p, caches.total_bytes, caches.given_bytes);
      count(requested_, level::requested_bytes, p, caches.taken_requested, caches.given_requested);
      // Deferred frees are given, and still wait.
      count(active_, level::active, p, 0, -caches.waited);
      count(pending_, level::active_bytes, p, caches.waited_bytes, 0);
    }
  }

  // shared: the peaks of several heaps together; null: there is one heap, whose own peaks are exact.
  memory_statistics finish(shared_levels const* shared) noexcept {
    for (std::size_t p = 0; p < 3; ++p) {
      // Of active bytes, only what is pending was counted until here.
      at(level::active_bytes, p) += at(level::allocated_bytes, p);
      for (std::size_t k = 0; k < levels; ++k)
        set_level(k, p, shared);
      derive(p);
    }
    for (statistic* s : {&out_.inactive.all, &out_.inactive.large})
      s->current = s->allocated - s->freed;
    return out_;
  }

 private:
  using by_pool_of = std::array<statistic*, 3>;
  using sums = heap_counters::sums;

  std::int64_t& at(level k, std::size_t p) noexcept { return now_[static_cast<std::size_t>(k)][p]; }
  void count(by_pool_of const& to, level k, std::size_t p, std::int64_t taken, std::int64_t given) noexcept {
    to[p]->allocated += taken;
    to[p]->freed += given;
    at(k, p) += taken - given;
  }

  // Each number is read once, so that small and large add up to all.
  void add_totals(heap_counters const& heap, std::size_t p) noexcept {
    auto const ever = [&](heap_counters::pools const& s, heap_counters::value sums::*what) {
      return heap.of(s, p, what);
    };
    std::int64_t const taken = ever(heap.taken_, &sums::blocks);
    std::int64_t const given = ever(heap.given_, &sums::blocks);
    std::int64_t const pending_bytes = ever(heap.pending_, &sums::bytes);
    std::int64_t const reclaimed_bytes = ever(heap.reclaimed_, &sums::bytes);
    std::int64_t const inactive = given - ever(heap.pending_, &sums::blocks) + ever(heap.reclaimed_, &sums::blocks);
    std::int64_t const taken_bytes = ever(heap.taken_, &sums::bytes);
    std::int64_t const given_bytes = ever(heap.given_, &sums::bytes);
    std::int64_t const taken_requested = ever(heap.taken_, &sums::requested);
    std::int64_t const given_requested = ever(heap.given_, &sums::requested);
    for (std::size_t q : {p, heap_counters::all}) {
      count(allocation_, level::allocation, q, taken, given);
      count(active_, level::active, q, taken, inactive);
      count(allocated_, level::allocated_bytes, q, taken_bytes, given_bytes);
      count(requested_, level::requested_bytes, q, taken_requested, given_requested);
      count(pending_, level::active_bytes, q, pending_bytes, reclaimed_bytes);
    }
  }

  void set_level(std::size_t k, std::size_t p, shared_levels const* shared) noexcept {
    std::int64_t known = peak_[k][p];
    if (shared)
      known = std::min(known, shared->peak(static_cast<level>(k), p));
    // The peak of reserved bytes is exact, and no level of bytes passes it.
    if (k >= static_cast<std::size_t>(level::allocated_bytes))
      known = std::min(known, reserved_[p]->peak);
    with_peak_[k][p]->current = now_[k][p];
    with_peak_[k][p]->peak = std::max(known, now_[k][p]);
  }

  // reserved = allocated + pending + cached, and active = allocated + pending. A block that waits is freed from
  // allocated into pending. Later it is freed from pending, which ends its active time.
  // Into the cache come blocks that end, and new memory. Out of it go allocations, and what the driver gets back.
  void derive(std::size_t p) noexcept {
    pending_[p]->current = active_bytes_[p]->current - allocated_[p]->current;
    pending_[p]->peak = std::max(std::min(pending_[p]->peak, reserved_[p]->peak), pending_[p]->current);
    active_bytes_[p]->allocated = allocated_[p]->allocated;
    active_bytes_[p]->freed = allocated_[p]->freed - pending_[p]->allocated + pending_[p]->freed;
    cached_[p]->current = reserved_[p]->current - active_bytes_[p]->current;
    cached_[p]->allocated = active_bytes_[p]->freed + reserved_[p]->allocated;
    cached_[p]->freed = allocated_[p]->allocated + reserved_[p]->freed;
    cached_[p]->peak = std::max(std::min(cached_[p]->peak, reserved_[p]->peak), cached_[p]->current);
  }

  memory_statistics out_;
  by_pool_of const allocation_ = parts(out_.allocation);
  by_pool_of const active_ = parts(out_.active);
  by_pool_of const allocated_ = parts(out_.allocated_bytes);
  by_pool_of const requested_ = parts(out_.requested_bytes);
  by_pool_of const active_bytes_ = parts(out_.active_bytes);
  by_pool_of const pending_ = parts(out_.pending_bytes);
  by_pool_of const cached_ = parts(out_.cached_bytes);
  by_pool_of const reserved_ = parts(out_.reserved_bytes);
  std::array<by_pool_of, levels> const with_peak_{allocation_, active_, allocated_, active_bytes_, requested_};
  level_values now_{};   // of active bytes what is pending, until finish()
  level_values peak_{};  // the sums of the heaps' own
};

// Each level is the difference of the totals that are read here. So slots that move between a cache and the
// heap_counters between the two reads count in neither.
memory_statistics device_counters::sum(std::span<heap_counters const* const> heap_counts,
                                       cached_slots const& caches) const noexcept {
  adder all(now_);
  for (heap_counters const* const heap : heap_counts)
    all.add_heap(*heap);
  all.add_caches(caches);
  return all.finish(heap_counts.size() > 1 ? &shared_ : nullptr);
}

}  // namespace weir::observe
