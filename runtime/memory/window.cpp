// Where an arena grows: the window of free pieces and gaps that needs fewest unmapped bytes.
// Threads: as arena.h.
//
// Windows are sought around the largest free pieces that are too small, and around the gaps that are large enough: at most `looks`
// of each, and at most `reach` pieces to each side. Only when addresses run out are all gaps looked at.
#include <algorithm>

#include "runtime/memory/arena.h"

namespace weir::memory {
namespace {
constexpr int looks = 64, reach = 16;
bool idle(piece const* p) noexcept { return p && (p->is == state::free || p->is == state::gap); }
}  // namespace

void arena::consider(piece& near, std::size_t bytes, std::size_t alignment, window& best) noexcept {
  piece* first = &near;
  piece* last = &near;
  for (int i = 0; i < reach && !apart(*first) && idle(first->before); ++i) first = first->before;
  for (int i = 0; i < reach && idle(last->after) && !apart(*last->after); ++i) last = last->after;
  address const from = first->at, to = last->end();
  if (to - from < bytes) return;
  std::size_t const page = near.in->page_bytes, hole = to - from;
  auto const at = [&](address a) {
    if (a < from || a + bytes > to) return;
    std::size_t missing = 0;
    for (piece* p = first; p != last->after; p = p->after) {
      if (p->is != state::gap) continue;
      address const x = std::max(p->at, round_down(a, page)), y = std::min(p->end(), round_up(a + bytes, page));
      if (y > x) missing += y - x;
    }
    bool const tighter = hole < best.hole || (hole == best.hole && a < best.at);
    if (missing < best.missing || (missing == best.missing && tighter)) best = {a, missing, hole, first};
  };
  for (piece* p = first; p != last->after; p = p->after) {
    at(round_up(p->at, alignment));
    if (p->end() - from >= bytes) at(round_down(p->end() - bytes, alignment));
  }
}

arena::window arena::best_window(std::size_t bytes, std::size_t alignment, part in) const noexcept {
  bins const& gaps = in == part::runs ? gap_runs_ : gaps_;
  window best;
  auto const around = [&](piece& p) {
    if (p.is == state::gap || (!apart(p) && p.before && p.before->is == state::gap) || (p.after && p.after->is == state::gap && !apart(*p.after))) {
      consider(p, bytes, alignment, best);
    }
    return false;
  };
  (in == part::runs ? runs_ : free_).look_down(bytes, around, looks);
  gaps.look(bytes, around, looks);
  if (!best.first) gaps.each(around);
  return best;
}

bool arena::plan(std::size_t bytes, std::size_t alignment, part in, growth& out) {
  window const w = best_window(bytes, alignment, in);
  if (w.first) reserve_window(w, bytes, out);
  return w.first;
}

void arena::reserve_window(window const& w, std::size_t bytes, growth& out) {
  address const best = w.at;
  std::size_t const page = w.first->in->page_bytes;
  growth plan{nullptr, best, bytes, {}, 0, w.missing};
  piece* p = w.first;
  while (p->end() <= best) p = p->after;
  std::size_t pieces = 0;
  for (piece* q = p; q && q->at < best + bytes; q = q->after, ++pieces) {
    if (q->is != state::gap) continue;
    address const x = std::max(q->at, round_down(best, page)), y = std::min(q->end(), round_up(best + bytes, page));
    plan.missing.push_back({x, y - x});
  }
  stock(2 * pieces + 4);
  // Nothing below allocates. The window: what of each piece lies inside, gaps by whole pages.
  address const left = p->is == state::gap ? std::max(p->at, round_down(best, page)) : best;
  p->is == state::gap ? gap_erase(*p) : delist(*p);
  if (left > p->at) {
    piece* const right = cut(*p, left);
    p->is == state::gap ? gap_insert(*p) : enlist(*p);
    p = right;
  }
  plan.window = p;
  bool newest_is_gap = p->is == state::gap;
  plan.freed = newest_is_gap ? 0 : p->freed;
  while (p->end() < best + bytes) {
    piece* const next = p->after;
    newest_is_gap = next->is == state::gap;
    newest_is_gap ? gap_erase(*next) : delist(*next);
    if (!newest_is_gap) plan.freed = std::max(plan.freed, next->freed);
    absorb_next(*p);
  }
  address const right = newest_is_gap ? std::min(p->end(), round_up(best + bytes, page)) : best + bytes;
  if (right < p->end()) {
    piece* const rest = cut(*p, right);
    rest->is = newest_is_gap ? state::gap : state::free;
    rest->freed = newest_is_gap ? 0 : plan.freed;
    newest_is_gap ? gap_insert(*rest) : enlist(*rest);
  }
  p->is = state::reserved;
  p->freed = plan.freed;
  out = std::move(plan);
}

}  // namespace weir::memory
