// Plans an arena's growth: the range of free and unmapped blocks that lacks the fewest pages.
// Threads: as arena.h.
//
// The search looks around the largest free blocks that are too small, and around unmapped blocks that are
// large enough: at most `most_looks` of each, `reach` blocks to each side, and some `alias_looks` aliases. If it
// finds none, a thorough search tries all unmapped blocks. An alias whose handle is switched back costs
// almost nothing. A range with an alias that must stay is not used.
#include <algorithm>
#include <optional>
#include <tuple>

#include "runtime/memory/blocks/arena.h"

namespace weir::memory {
namespace {
constexpr int most_looks = 64, reach = 16, alias_looks = 4096;
constexpr int most_openings = 32;
constexpr std::size_t hardly_an_end = 32;     // less than one of so many parts of a page
constexpr std::size_t most_swap_ranges = 32;  // of aliases to switch back, tried as plans
using outcome = alias_view::outcome;

bool idle(heap_block const* p) noexcept {
  return p && (p->is == state::free || p->is == state::unmapped);
}

// Of so many missing bytes. A 64th is what it costs to switch an alias back.
std::size_t saved_by(outcome is, std::size_t bytes) noexcept {
  return is == outcome::swaps ? bytes - bytes / 64 : 0;
}

// The aliases of a neighbourhood, with running sums of what they save.
class alias_gains {
 public:
  explicit alias_gains(alias_view const& s) : sight_(s) {}
  // False: this search has examined enough aliases, and the place that it found already must do.
  bool look(address from, address to, bool found_a_place) {
    seen_.clear(), swap_ranges_.clear();
    from_ = from, to_ = to, seen_to_ = ~address{0};
    if (!sight_.all)
      return true;
    if (left_ <= 0 && found_a_place)
      return false;
    std::size_t saved = 0, staying = 0;
    for (auto i = sight_.from(from); i != sight_.all->end() && i->first < to; ++i) {
      alias const& g = i->second;
      if (!g.of || g.end() <= from)
        continue;
      // No more are examined here: between() judges this one and those above it, each time anew.
      if (left_-- <= 0) {
        seen_to_ = std::max(from, g.at);
        break;
      }
      outcome const is = sight_.judge(sight_.context, g, from, to);
      if (is == outcome::swaps)
        add_swap_range(g);
      seen_.push_back({g.at, g.end(), is, saved, staying});
      saved += saved_by(is, g.bytes);
      staying += is == outcome::stays;
    }
    seen_.push_back({to, to, outcome::unmaps, saved, staying});  // the sentinel, with the sums of all
    return true;
  }
  // Ranges of adjacent aliases that are switched back.
  std::vector<std::pair<address, address>> const& swap_ranges() const noexcept { return swap_ranges_; }
  // Missing bytes that the aliases between two addresses save. nullopt: one of them must stay.
  std::optional<std::size_t> between(address lo, address hi) const noexcept {
    if (hi > seen_to_)  // look() did not get that far
      return one_by_one(lo, hi);
    if (seen_.size() < 2)  // the sentinel alone, or not even that
      return 0;
    auto const first = std::partition_point(seen_.begin(), seen_.end() - 1, [&](seen const& s) { return s.end <= lo; });
    auto const past = std::partition_point(first, seen_.end() - 1, [&](seen const& s) { return s.at < hi; });
    if (first == past)
      return 0;
    if (past->staying_before != first->staying_before)
      return std::nullopt;
    // The sums have the first alias and the last one whole: what lies outside is taken off.
    std::size_t saved = past->saved_before - first->saved_before;
    if (first->at < lo)
      saved -= saved_by(first->is, lo - first->at);
    if (auto const last = past - 1; last->end > hi)
      saved -= saved_by(last->is, last->end - hi);
    return saved;
  }

 private:
  struct seen {
    address at, end;
    outcome is;
    std::size_t saved_before, staying_before;  // sums over those below it
  };
  void add_swap_range(alias const& g) {
    if (!swap_ranges_.empty() && swap_ranges_.back().second == g.at)
      swap_ranges_.back().second = g.end();
    else if (swap_ranges_.size() < most_swap_ranges)
      swap_ranges_.push_back({g.at, g.end()});
  }
  std::optional<std::size_t> one_by_one(address lo, address hi) const noexcept {
    std::size_t saved = 0;
    for (auto i = sight_.from(lo); i != sight_.all->end() && i->first < hi; ++i) {
      alias const& g = i->second;
      if (!g.of || g.end() <= lo)
        continue;
      outcome const is = sight_.judge(sight_.context, g, from_, to_);
      if (is == outcome::stays)
        return std::nullopt;
      saved += saved_by(is, std::min(hi, g.end()) - std::max(lo, g.at));
    }
    return saved;
  }

  alias_view const& sight_;
  address from_ = 0, to_ = 0;
  address seen_to_ = 0;     // seen_ has every alias below it
  std::vector<seen> seen_;  // by address, then a sentinel
  std::vector<std::pair<address, address>> swap_ranges_;
  int left_ = alias_looks;
};
}  // namespace

struct arena::search {
  std::size_t bytes, alignment;
  alias_gains aliases;
  bool thorough;
  std::uint64_t& looked_at;
  candidate best{};

  // A hole: idle blocks in a row, around the one that was found.
  struct hole {
    heap_block* first;
    heap_block* last;
    address from() const { return first->at; }
    address to() const { return last->end(); }
  };

  void consider(heap_block& near) {
    hole const h = hole_around(near);
    if (h.to() - h.from() < bytes)
      return;
    if (!aliases.look(h.from(), h.to(), best.first != nullptr))
      return;
    // The best place begins or ends where a block does, or a range of aliases.
    for (heap_block* p = h.first; p != h.last->after; p = p->after)
      try_both_ends(h, p->at, p->end());
    for (auto const& [start, end] : aliases.swap_ranges())
      try_both_ends(h, start, end);
  }

 private:
  hole hole_around(heap_block& near) {
    hole h{&near, &near};
    looked_at += 2 * reach;
    for (int i = 0; i < reach && !apart(*h.first) && idle(h.first->before); ++i)
      h.first = h.first->before;
    for (int i = 0; i < reach && idle(h.last->after) && !apart(*h.last->after); ++i)
      h.last = h.last->after;
    return h;
  }

  void try_both_ends(hole const& h, address start, address end) {
    try_at(h, round_up(start, alignment));
    if (end - h.from() >= bytes)
      try_at(h, round_down(end - bytes, alignment));
  }

  void try_at(hole const& h, address a) {
    if (a < h.from() || a + bytes > h.to())
      return;
    std::size_t const page = h.first->in->page_bytes;
    address const lo = round_down(a, page);
    address const hi = round_up(a + bytes, page);
    // Bytes of the pages around the block, as far as they lie in the hole.
    std::size_t missing = 0;
    std::size_t mapped = 0;
    for (heap_block* p = h.first; p != h.last->after; p = p->after) {
      address const x = std::max(p->at, lo);
      address const y = std::min(p->end(), hi);
      if (y > x)
        (p->is == state::unmapped ? missing : mapped) += y - x;
    }
    auto const saved = aliases.between(lo, hi);
    if (!saved)
      return;
    std::size_t const cost = missing - *saved;
    // A mapped end may save a page. Of such places the best leaves the least free: a larger end may later
    // save a page of a larger block.
    std::size_t ends = 0;
    if (missing < round_up(bytes, page))
      ends = mapped + missing - bytes;
    std::size_t const hole_bytes = h.to() - h.from();
    if (std::tie(cost, ends, hole_bytes, a) < std::tie(best.cost, best.ends, best.hole, best.at))
      best = {a, missing, cost, ends, hole_bytes, h.first};
  }
};

arena::candidate arena::best_candidate(search& s, zone in) const {
  bins const& unmapped = in == zone::runs ? unmapped_runs_ : unmapped_;
  // A free block with no unmapped one beside it cannot grow.
  auto const can_grow = [](heap_block const& p) {
    bool const to_the_left = p.before && p.before->is == state::unmapped && !apart(p);
    bool const to_the_right = p.after && p.after->is == state::unmapped && !apart(*p.after);
    return p.is == state::unmapped || to_the_left || to_the_right;
  };
  auto const around = [&](heap_block& p) {
    ++s.looked_at;
    if (can_grow(p))
      s.consider(p);
    return false;  // the next one, too
  };
  // The largest free blocks that are too small, or hardly large enough; then unmapped ones.
  int left = most_looks;
  if (in == zone::blocks) {
    for (heap_block* p : large_by_size(
             most_looks, [&](heap_block const&q) { return bins::bin_of(q.bytes) <= bins::bin_of(s.bytes); },
             [](heap_block const*a, heap_block const*b) { return a->bytes > b->bytes; })) {
      around(*p);
      --left;
    }
  }
  (in == zone::runs ? runs_ : free_).look_down(s.bytes, around, left);
  unmapped.look(s.bytes, around, most_looks);
  // Any of so many bytes has an aligned place.
  if (!s.best.first)
    unmapped.look(s.bytes + s.alignment, around, most_looks);
  if (!s.best.first && s.thorough)
    unmapped.each(around);
  return s.best;
}

// Of openings with room: for a large block where the fewest pages come into use, else the lowest that suits.
template <class Suits>
arena::chosen arena::choose(std::size_t bytes, std::size_t alignment, Suits suits) {
  if (is_for_large(bytes)) {
    if (chosen const c = choose_fewest(bytes, alignment, suits); c.left)
      return c;
  }
  for (region const* r : regions_) {
    if (!r->rooms)
      continue;
    int looks = most_openings;
    for (heap_block* left = r->rooms->lowest(bytes); left && looks-- > 0; left = r->rooms->next(bytes, *left)) {
      address const at = round_up(left->end(), alignment);
      if (at + bytes <= left->end() + left->room && suits(r->rooms->first(*left), at))
        return {left, at};
    }
  }
  return {};
}

namespace {
// Pages that come into use for a block at `at`, in the opening from `from` to `to`. One less if hardly
// anything stays free before the block and behind it.
std::ptrdiff_t cost_of(address at, std::size_t bytes, address from, address to, std::size_t page) noexcept {
  address const lo = round_down(at, page), hi = round_up(at + bytes, page);
  auto pages = static_cast<std::ptrdiff_t>((hi - lo) / page);
  // A page that the opening has in part is in use already. The first may be the last: it counts once.
  bool const first_in_use = from > lo, last_in_use = to < hi, is_one = hi - lo == page;
  pages -= first_in_use;
  pages -= last_in_use && !(first_in_use && is_one);
  std::size_t const free_before = at - std::max(from, lo);
  std::size_t const free_behind = std::min(to, hi) - (at + bytes);
  bool const hardly_any = free_before + free_behind < page / hardly_an_end;
  return pages - hardly_any;
}
}  // namespace

// Examines the openings of some leaves, at both ends of each.
template <class Suits>
arena::chosen arena::choose_fewest(std::size_t bytes, std::size_t alignment, Suits suits) {
  chosen best;
  auto least = std::numeric_limits<std::ptrdiff_t>::max();
  for (region const* r : regions_) {
    if (!r->rooms)
      continue;
    std::size_t const page = r->page_bytes;
    r->rooms->some_of(bytes, [&](heap_block& left) {
      address const from = left.end(), to = from + left.room;
      ++looked_at_;
      auto const consider = [&](address at) {
        if (at < from || at + bytes > to)
          return;
        std::ptrdiff_t const cost = cost_of(at, bytes, from, to, page);
        // Of equal costs the lowest place.
        if (cost > least || (cost == least && at >= best.at))
          return;
        if (suits(r->rooms->first(left), at)) {
          least = cost;
          best = {&left, at};
        }
      };
      consider(round_up(from, alignment));
      // The last opening has no block behind it whose page it could share.
      if (to < r->runs)
        consider(round_down(to - bytes, alignment));
    });
    // A later region only if none before it has room.
    if (best.left)
      break;
  }
  return best;
}

heap_block* arena::take_chosen(std::size_t bytes, std::size_t alignment) {
  chosen const c = choose(bytes, std::max(alignment, bins::unit), [](heap_block const&, address) { return true; });
  if (!c.left)
    return nullptr;
  heap_block* p = &c.left->in->rooms->first(*c.left);
  while (p->end() <= c.at)
    p = p->after;
  // A part of the place is not mapped: plan() looks there next.
  if (p->is != state::free || c.at + bytes > p->end())
    return nullptr;
  return carve(p, c.at, bytes);
}

// The place that take_chosen() looks at, unless an alias there must stay: then the next one.
arena::candidate arena::chosen_candidate(search& s) {
  candidate out;
  chosen const c = choose(s.bytes, s.alignment, [&](heap_block const& in_opening, address at) {
    std::size_t const page = in_opening.in->page_bytes;
    address const lo = round_down(at, page), hi = round_up(at + s.bytes, page);
    // No place was found yet, so that look() never refuses.
    (void)s.aliases.look(lo, hi, false);
    return s.aliases.between(lo, hi).has_value();
  });
  if (!c.left)
    return out;
  heap_block& block = c.left->in->rooms->first(*c.left);
  std::size_t const page = block.in->page_bytes;
  address const lo = round_down(c.at, page), hi = round_up(c.at + s.bytes, page);
  out.at = c.at;
  out.first = &block;
  out.missing = 0;
  for (heap_block const* p = &block; p && p->at < hi && idle(p); p = p->after) {
    address const from = std::max(p->at, lo), to = std::min(p->end(), hi);
    if (to > from && p->is == state::unmapped)
      out.missing += to - from;
  }
  return out;
}

bool arena::plan(std::size_t bytes, std::size_t alignment, zone in, growth_plan& out, alias_view const& sight,
                 bool thorough) {
  search s{bytes, alignment, alias_gains(sight), thorough, looked_at_};
  candidate found;
  // To a thorough search few new pages matter more than the order of places.
  if (in == zone::blocks && places_first() && !thorough)
    found = chosen_candidate(s);
  if (!found.first)
    found = best_candidate(s, in);
  if (!found.first)
    return false;
  reserve_candidate(found, bytes, out, sight);
  return true;
}

void arena::list_idle(heap_block& p) noexcept {
  if (p.is == state::unmapped)
    insert_unmapped(p);
  else
    enlist(p);
}

void arena::unlist_idle(heap_block& p) noexcept {
  if (p.is == state::unmapped)
    erase_unmapped(p);
  else
    delist(p);
}

namespace {
void add_aliases_between(address lo, address hi, alias_view const& sight, growth_plan& plan) {
  if (!sight.all)
    return;
  for (auto i = sight.from(lo); i != sight.all->end() && i->first < hi; ++i) {
    if (i->second.of && i->second.end() > lo)
      plan.aliases.push_back(const_cast<alias*>(&i->second));
  }
}

// Of the blocks from `first` up to `end`, the parts that are unmapped between lo and hi. Returns: how many blocks.
std::size_t add_missing(heap_block const& first, address end, address lo, address hi, growth_plan& plan) {
  std::size_t blocks = 0;
  for (heap_block const* q = &first; q && q->at < end; q = q->after) {
    ++blocks;
    if (q->is != state::unmapped)
      continue;
    address const x = std::max(q->at, lo);
    address const y = std::min(q->end(), hi);
    plan.missing.push_back({x, y - x});
  }
  return blocks;
}
}  // namespace

heap_block* arena::unlist_idle_from(heap_block& p, address from) noexcept {
  unlist_idle(p);
  if (from <= p.at)
    return &p;
  heap_block* const right = split(p, from);
  list_idle(p);
  return right;
}

void arena::reserve_candidate(candidate const& place, std::size_t bytes, growth_plan& out, alias_view const& sight) {
  address const from = place.at;
  address const to = place.at + bytes;
  std::size_t const page = place.first->in->page_bytes;
  growth_plan plan;
  plan.block = from, plan.bytes = bytes, plan.missing_bytes = place.missing;
  // Of free blocks the plan takes only the block's bytes. Of unmapped ones it takes whole pages, and whole
  // aliases there: what lies between lo and hi.
  address lo = round_down(from, page);
  address hi = round_up(to, page);
  add_aliases_between(lo, hi, sight, plan);
  heap_block* p = place.first;
  while (p->end() <= from)
    p = p->after;
  std::size_t const blocks = add_missing(*p, to, lo, hi, plan);
  // Two are made here. The others are for end_reservation(), which cuts where mapped pages begin or end.
  stock(2 * (blocks + plan.aliases.size()) + 4);
  if (!plan.aliases.empty()) {
    lo = std::min(lo, plan.aliases.front()->at);
    hi = std::max(hi, plan.aliases.back()->end());
  }

  // Nothing below allocates. First what lies below the plan stays.
  address begin = from;
  if (p->is == state::unmapped)
    begin = std::max(p->at, lo);
  p = unlist_idle_from(*p, begin);

  // Then all blocks up to its end become one.
  plan.reserved = p;
  state last = p->is;
  if (last != state::unmapped)
    plan.freed = p->freed;
  while (p->end() < to) {
    heap_block* const next = p->after;
    last = next->is;
    unlist_idle(*next);
    if (last != state::unmapped)
      plan.freed = std::max(plan.freed, next->freed);
    absorb_next(*p);
  }

  // What lies above it stays as the last block was.
  address end = to;
  if (last == state::unmapped)
    end = std::min(p->end(), hi);
  if (end < p->end()) {
    heap_block* const rest = split(*p, end);
    rest->is = last;
    rest->freed = last == state::unmapped ? 0 : plan.freed;
    list_idle(*rest);
  }
  p->is = state::reserved;
  close_around(*p);
  p->freed = plan.freed;
  out = std::move(plan);
}

}  // namespace weir::memory
