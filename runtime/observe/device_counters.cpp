// The sum over all heap_counters of a device, with torch's names.
// Threads: any.
#include "runtime/observe/device_counters.h"

#include <algorithm>
#include <utility>

namespace weir::observe {

void heap_counters::add(change const& out, change const& deferred) noexcept {
  out_.add(out.blocks, out.bytes, out.requested);
  deferred_.add(deferred.blocks, deferred.bytes, deferred.requested);
  if (!alone_.get())
    return;
  bytes_left_.add(size_pool::small, -out.bytes);
  requested_left_.add(size_pool::small, -out.requested);
  blocks_left_.add(size_pool::small, -out.blocks);
  cached_left_.add(size_pool::small, out.bytes);
}

// Notes the levels of the cache's last report first: since then the cache stayed within its grant.
void heap_counters::absorb(change const& out, change const& deferred) noexcept {
  bool const was_aside = take_back();
  if (alone_.get() && !was_aside) {
    bool const rising = rising_;
    falls();
    if (!rising && cached_left_.least() < 0)
      note_cached();
    rising_ = rising;
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
  // requested bytes, where slots in caches count whole
  std::int64_t const rise = out.requested - out.bytes + deferred.bytes - deferred.requested;
  if (rise < 0)
    falls();
  else
    requested_left_.add(size_pool::small, -rise), rising_ = true;
  if (shared_ && (credit_ -= std::max<std::int64_t>(0, rise)) < 0)
    publish();
}

void heap_counters::set_aside(grant const& g, int sign) noexcept {
  bytes_left_.add(size_pool::small, -sign * g.up.bytes);
  requested_left_.add(size_pool::small, -sign * g.up.requested);
  blocks_left_.add(size_pool::small, -sign * g.up.blocks);
  cached_left_.add(size_pool::small, -sign * g.down_bytes);
}

bool heap_counters::take_back() noexcept {
  if (!std::exchange(set_aside_, false))
    return false;
  set_aside(aside_, -1);
  return true;
}

// The rooms are exact unless one has been passed; then everything is recomputed. While large blocks come and
// go, they keep half of what is left of all.
grant heap_counters::left() noexcept {
  if ((rooms_up() | cached_left_.least()) >= 0) {
    std::size_t const large = index(size_pool::large);
    std::int64_t const came_and_went = taken_[large].blocks.get() + given_[large].blocks.get();
    int const parts = std::exchange(large_seen_, came_and_went) == came_and_went ? 1 : 2;
    auto const share = [parts](headroom const& r, std::int64_t most) { return std::min(r.left_of_small(parts), most); };
    aside_ = {{share(blocks_left_, unpublished::most_blocks), share(bytes_left_, unpublished::most_bytes),
               share(requested_left_, unpublished::most_bytes)},
              share(cached_left_, unpublished::most_bytes)};
    set_aside(aside_, 1);
    set_aside_ = true;
    return aside_;
  }
  note_peaks(), note_cached();
  auto const now = current();
  for (std::size_t k = 0; k < levels; ++k)
    for (std::size_t i = 0; i < 2; ++i)
      left_.up[k][i] = peaks_[k][2 * i].get() - now[k][2 * i];
  for (std::size_t i = 0; i < 2; ++i)
    left_.down[i] = cached_peak_[2 * i].get() - cached(2 * i);
  left_.known = true;
  return left_.least();
}

grant heap_counters::left_after(change const& out, change const& deferred) noexcept {
  if (!left_.known) {
    take_back() ? add(out, deferred) : absorb(out, deferred);
    return left();
  }
  add(out, deferred);
  std::int64_t const by[levels] = {out.blocks - deferred.blocks, out.blocks, out.bytes - deferred.bytes, out.bytes,
                                   out.requested - deferred.requested};
  auto const fall = [](std::int64_t& left, std::int64_t n, value& peak) {
    if ((left -= n) < 0)
      peak.add(-std::exchange(left, 0));
  };
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t k = 0; k < levels; ++k)
      fall(left_.up[k][i], by[k], peaks_[k][2 * i]);
    fall(left_.down[i], -out.bytes, cached_peak_[2 * i]);
  }
  return left_.least();
}

grant heap_counters::left_now::least() const noexcept {
  auto const of = [&](level k) {
    return std::min(up[static_cast<std::size_t>(k)][0], up[static_cast<std::size_t>(k)][1]);
  };
  return {{std::min(of(level::allocation), of(level::active)),
           std::min(of(level::allocated_bytes), of(level::active_bytes)), of(level::requested_bytes)},
          std::min(down[0], down[1])};
}

void heap_counters::set_alone(bool to) noexcept {
  if (alone_.get() == to)
    return;
  note_peaks(), note_cached();
  alone_.set(to);
  note_peaks(), note_cached();
}

level_values heap_counters::current() const noexcept {
  level_values out;
  for (std::size_t p = 0; p < all; ++p) {
    auto const live_of = [&](value sums::*what) { return (taken_[p].*what).get() - (given_[p].*what).get(); };
    out[0][p] = live_of(&sums::blocks);
    out[1][p] = out[0][p] + pending_[p].blocks.get() - reclaimed_[p].blocks.get();
    out[2][p] = live_of(&sums::bytes);
    out[3][p] = out[2][p] + pending_[p].bytes.get() - reclaimed_[p].bytes.get();
    out[4][p] = live_of(&sums::requested);
  }
  constexpr std::size_t small = 0;  // thread caches hold only small blocks
  auto const add = [&](std::size_t k, std::int64_t live, std::int64_t active) {
    out[k][small] += live, out[k + 1][small] += active;
  };
  if (alone_.get()) {
    std::int64_t const blocks = out_.blocks.get(), bytes = out_.bytes.get();
    add(0, blocks - deferred_.blocks.get(), blocks);
    add(2, bytes - deferred_.bytes.get(), bytes);
    out[4][small] += out_.requested.get() - deferred_.requested.get();
  } else {
    std::int64_t const blocks = drawn_[small].blocks.get() - returned_[small].blocks.get(),
                       bytes = drawn_[small].bytes.get() - returned_[small].bytes.get();
    add(0, blocks, blocks + sent_.blocks.get());
    add(2, bytes, bytes + sent_.bytes.get());
    out[4][small] +=
        bytes + out_.requested.get() - out_.bytes.get() + deferred_.bytes.get() - deferred_.requested.get();
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
  auto const set = [&](headroom& r, level a, level b) {
    by_pool least = left[static_cast<std::size_t>(a)];
    for (std::size_t p = 0; p < 3; ++p)
      least[p] = std::min(least[p], left[static_cast<std::size_t>(b)][p]);
    r.set(least);
  };
  set(blocks_left_, level::allocation, level::active);
  set(bytes_left_, level::allocated_bytes, level::active_bytes);
  set(requested_left_, level::requested_bytes, level::requested_bytes);
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

// Each level is the difference of the totals that are read here. So slots that move between a cache and the
// heap_counters between the two reads count in neither.
memory_statistics device_counters::sum(std::span<heap_counters const* const> heap_counts,
                                       cached_slots const& caches) const noexcept {
  using sums = heap_counters::sums;
  memory_statistics out = now_;
  auto const allocation = parts(out.allocation), active = parts(out.active), allocated = parts(out.allocated_bytes),
             requested = parts(out.requested_bytes), active_bytes = parts(out.active_bytes),
             pending = parts(out.pending_bytes), cached = parts(out.cached_bytes), reserved = parts(out.reserved_bytes);
  std::array<std::array<statistic*, 3>, levels> const with_peak{allocation, active, allocated, active_bytes, requested};
  level_values now{}, peak{};
  for (heap_counters const* const t : heap_counts) {
    auto const peak_here = t->peaks();
    for (std::size_t p = 0; p < heap_counters::all; ++p) {  // each number is read once, so that small and large add up
      auto const ever = [&](heap_counters::pools const& s, heap_counters::value sums::*what) {
        return t->of(s, p, what);
      };
      auto const add = [&](std::array<statistic*, 3> const& to, level k, std::int64_t taken, std::int64_t given) {
        for (std::size_t q : {p, heap_counters::all})
          to[q]->allocated += taken, to[q]->freed += given, now[static_cast<std::size_t>(k)][q] += taken - given;
      };
      std::int64_t const taken = ever(t->taken_, &sums::blocks), given = ever(t->given_, &sums::blocks);
      std::int64_t const held = ever(t->pending_, &sums::bytes), settled = ever(t->reclaimed_, &sums::bytes);
      add(allocation, level::allocation, taken, given);
      add(active, level::active, taken, given - ever(t->pending_, &sums::blocks) + ever(t->reclaimed_, &sums::blocks));
      add(allocated, level::allocated_bytes, ever(t->taken_, &sums::bytes), ever(t->given_, &sums::bytes));
      add(requested, level::requested_bytes, ever(t->taken_, &sums::requested), ever(t->given_, &sums::requested));
      add(pending, level::active_bytes, held, settled);
    }
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t k = 0; k < levels; ++k)
        peak[k][p] += peak_here[k][p];
      pending[p]->peak += t->pending_peak_[p].get();
      cached[p]->peak += std::max(t->cached_peak_[p].get(), t->cached(p));
    }
    for (statistic* s : {&out.inactive.all, &out.inactive.large})
      s->allocated += t->free_blocks_made_.get(), s->freed += t->free_blocks_gone_.get(),
          s->peak += t->free_blocks_peak_.get();
  }
  for (std::size_t p : {std::size_t{0}, heap_counters::all}) {  // thread caches hold only small blocks
    for (level k : {level::allocation, level::active})
      now[static_cast<std::size_t>(k)][p] += caches.taken - caches.given;
    now[static_cast<std::size_t>(level::allocated_bytes)][p] += caches.total_bytes - caches.given_bytes;
    now[static_cast<std::size_t>(level::requested_bytes)][p] += caches.taken_requested - caches.given_requested;
    for (auto const& s : {allocation, active})
      s[p]->allocated += caches.taken, s[p]->freed += caches.given;
    allocated[p]->allocated += caches.total_bytes, allocated[p]->freed += caches.given_bytes;
    requested[p]->allocated += caches.taken_requested, requested[p]->freed += caches.given_requested;
    now[static_cast<std::size_t>(level::active)][p] += caches.waited, active[p]->freed -= caches.waited;
    now[static_cast<std::size_t>(level::active_bytes)][p] += caches.waited_bytes,
        pending[p]->allocated += caches.waited_bytes;
  }
  for (std::size_t p = 0; p < 3; ++p) {
    now[static_cast<std::size_t>(level::active_bytes)][p] += now[static_cast<std::size_t>(level::allocated_bytes)][p];
    for (std::size_t k = 0; k < levels; ++k) {
      std::int64_t known =
          heap_counts.size() > 1 ? std::min(peak[k][p], shared_.peak(static_cast<level>(k), p)) : peak[k][p];
      // exact ones need no help
      if (k >= static_cast<std::size_t>(level::allocated_bytes))
        known = std::min(known, reserved[p]->peak);
      with_peak[k][p]->current = now[k][p];
      with_peak[k][p]->peak = std::max(known, now[k][p]);
    }
    pending[p]->current = active_bytes[p]->current - allocated[p]->current;
    pending[p]->peak = std::max(std::min(pending[p]->peak, reserved[p]->peak), pending[p]->current);
    active_bytes[p]->allocated = allocated[p]->allocated;
    active_bytes[p]->freed = allocated[p]->freed - pending[p]->allocated + pending[p]->freed;
    cached[p]->current = reserved[p]->current - active_bytes[p]->current;
    cached[p]->allocated = active_bytes[p]->freed + reserved[p]->allocated;
    cached[p]->freed = allocated[p]->allocated + reserved[p]->freed;
    cached[p]->peak = std::max(std::min(cached[p]->peak, reserved[p]->peak), cached[p]->current);
  }
  for (statistic* s : {&out.inactive.all, &out.inactive.large})
    s->current = s->allocated - s->freed;
  return out;
}

}  // namespace weir::observe
