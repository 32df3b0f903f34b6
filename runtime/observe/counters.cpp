// The sum over all tallies of a device, in torch's words.
// Threads: any.
#include "runtime/observe/counters.h"

#include <algorithm>

namespace weir::observe {

// What is now is what was taken less what was given back, the same numbers as are told of both: slots that go to a thread's cache, or come
// back, between the question to the caches and this one are in neither.
memory_statistics counters::sum(std::span<tally const* const> tallies, lent_slots const& lent) const noexcept {
  using sums = tally::sums;
  memory_statistics out = now_;
  auto const allocation = parts(out.allocation), active = parts(out.active), allocated = parts(out.allocated_bytes), requested = parts(out.requested_bytes),
             active_bytes = parts(out.active_bytes), pending = parts(out.pending_bytes), cached = parts(out.cached_bytes), reserved = parts(out.reserved_bytes);
  std::array<std::array<stat*, 3>, levels> const with_peak{allocation, active, allocated, active_bytes, requested};
  level_values now{}, peak{};
  for (tally const* const t : tallies) {
    auto const peak_here = t->peaks();
    for (std::size_t p = 0; p < tally::all; ++p) {  // each number is looked at once, so that small and large add up
      auto const ever = [&](tally::pools const& s, tally::cell sums::* what) { return t->of(s, p, what); };
      auto const add = [&](std::array<stat*, 3> const& to, level k, std::int64_t taken, std::int64_t given) {
        for (std::size_t q : {p, tally::all}) to[q]->allocated += taken, to[q]->freed += given, now[static_cast<std::size_t>(k)][q] += taken - given;
      };
      std::int64_t const taken = ever(t->taken_, &sums::blocks), given = ever(t->given_, &sums::blocks);
      std::int64_t const held = ever(t->held_, &sums::bytes), settled = ever(t->settled_, &sums::bytes);
      add(allocation, level::allocation, taken, given);
      add(active, level::active, taken, given - ever(t->held_, &sums::blocks) + ever(t->settled_, &sums::blocks));
      add(allocated, level::allocated_bytes, ever(t->taken_, &sums::bytes), ever(t->given_, &sums::bytes));
      add(requested, level::requested_bytes, ever(t->taken_, &sums::requested), ever(t->given_, &sums::requested));
      add(pending, level::active_bytes, held, settled);
    }
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t k = 0; k < levels; ++k) peak[k][p] += peak_here[k][p];
      pending[p]->peak += t->pending_peak_[p].get();
      cached[p]->peak += std::max(t->cached_peak_[p].get(), t->cached(p));
    }
    for (stat* s : {&out.inactive.all, &out.inactive.large}) {
      s->allocated += t->pieces_made_.get(), s->freed += t->pieces_gone_.get(), s->peak += t->pieces_peak_.get();
    }
  }
  for (std::size_t p : {std::size_t{0}, tally::all}) {  // thread caches hold small blocks alone
    for (level k : {level::allocation, level::active}) now[static_cast<std::size_t>(k)][p] += lent.taken - lent.given;
    now[static_cast<std::size_t>(level::allocated_bytes)][p] += lent.taken_bytes - lent.given_bytes;
    now[static_cast<std::size_t>(level::requested_bytes)][p] += lent.taken_requested - lent.given_requested;
    for (auto const& s : {allocation, active}) s[p]->allocated += lent.taken, s[p]->freed += lent.given;
    allocated[p]->allocated += lent.taken_bytes, allocated[p]->freed += lent.given_bytes;
    requested[p]->allocated += lent.taken_requested, requested[p]->freed += lent.given_requested;
    now[static_cast<std::size_t>(level::active)][p] += lent.waited, active[p]->freed -= lent.waited;
    now[static_cast<std::size_t>(level::active_bytes)][p] += lent.waited_bytes, pending[p]->allocated += lent.waited_bytes;
  }
  for (std::size_t p = 0; p < 3; ++p) {
    now[static_cast<std::size_t>(level::active_bytes)][p] += now[static_cast<std::size_t>(level::allocated_bytes)][p];
    for (std::size_t k = 0; k < levels; ++k) {
      std::int64_t known = tallies.size() > 1 ? std::min(peak[k][p], shared_.peak(static_cast<level>(k), p)) : peak[k][p];
      if (tallies.size() > 1 && k >= static_cast<std::size_t>(level::allocated_bytes)) known = std::min(known, reserved[p]->peak);  // exact ones need no help
      with_peak[k][p]->current = now[k][p];
      with_peak[k][p]->peak = std::max(known, now[k][p]);
    }
    pending[p]->current = active_bytes[p]->current - allocated[p]->current;
    pending[p]->peak = std::max(pending[p]->peak, pending[p]->current);
    active_bytes[p]->allocated = allocated[p]->allocated;
    active_bytes[p]->freed = allocated[p]->freed - pending[p]->allocated + pending[p]->freed;
    cached[p]->current = reserved[p]->current - active_bytes[p]->current;
    cached[p]->allocated = active_bytes[p]->freed + reserved[p]->allocated;
    cached[p]->freed = allocated[p]->allocated + reserved[p]->freed;
    cached[p]->peak = std::max(cached[p]->peak, cached[p]->current);
  }
  for (stat* s : {&out.inactive.all, &out.inactive.large}) s->current = s->allocated - s->freed;
  return out;
}

}  // namespace weir::observe
