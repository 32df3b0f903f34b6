// The slow half of arena.h: cutting, merging and reserving blocks.
// Threads: as arena.h.
#include "runtime/base/room.h"
#include "runtime/memory/blocks/arena.h"

#include <algorithm>

namespace weir::memory {

// Invariant: a spare block has no home, no marks, no slab and no requested size.
inline piece* arena::make(region& r, address at, std::size_t bytes, state is) noexcept {
  piece* const p = spare_.back();
  spare_.pop_back();
  p->at = at, p->bytes = bytes, p->in = &r, p->is = is;
  p->before = p->after = nullptr;
  p->freed = 0;
  return p;
}

void arena::stock_up(std::size_t pieces) {
  while (spare_.size() < pieces) {
    // so that returning a block to spare_ never allocates
    if (spare_.capacity() <= pieces_.size()) spare_.reserve(2 * pieces_.size() + pieces);
    spare_.push_back(&pieces_.emplace_back());
  }
}

[[gnu::always_inline]] inline void arena::link_after(piece& left, piece& right) noexcept {
  right.before = &left;
  right.after = left.after;
  if (left.after) left.after->before = &right;
  left.after = &right;
}

[[gnu::always_inline]] inline void arena::link_before(piece& right, piece& left) noexcept {
  left.after = &right;
  left.before = right.before;
  (right.before ? right.before->after : right.in->first) = &left;
  right.before = &left;
}

[[gnu::always_inline]] inline void arena::absorb_previous(piece& p) noexcept {
  piece* const gone = p.before;
  p.at = gone->at;
  p.bytes += gone->bytes;
  p.freed = std::max(p.freed, gone->freed);
  p.before = gone->before;
  (p.before ? p.before->after : p.in->first) = &p;
  spare_.push_back(gone);
}

piece* arena::cut(piece& p, address at) {
  stock(1);
  piece* const right = make(*p.in, at, p.end() - at, p.is);
  right->freed = p.freed;
  p.bytes = at - p.at;
  link_after(p, *right);
  return right;
}

void arena::enlist(piece& p) noexcept {
  bool const large = is_large(p);
  large ? p.in->large->insert(p) : list_of(p).insert(p);
  movable_.insert(p, large);
  ++listed_;
}

// Requires: nothing of the block has changed yet.
void arena::delist(piece& p) noexcept {
  movable_.erase(p);
  p.leaf == piece::no_leaf ? list_of(p).erase(p) : p.in->large->erase(p);
  --listed_;
}

// A free block that shrinks or grows stays the same object, so that most lists need no change.
[[gnu::always_inline]] inline void arena::before_change(piece& p) noexcept { movable_.before_change(p); }

[[gnu::always_inline]] inline void arena::after_change(piece& p) noexcept {
  bool const stays_large = p.leaf != piece::no_leaf && p.bytes >= p.in->large_bytes;
  if (stays_large && p.sorted == piece::in_movable::unsorted) [[likely]] return p.in->large->change(p);
  change_lists(p);
}

void arena::change_lists(piece& p) noexcept {
  bool const was = p.leaf != piece::no_leaf, is = is_large(p);
  if (was || is) return change_large(p, was, is);
  if (int const q = bins::bin_of(p.bytes); q != p.bin) {
    bins& list = list_of(p);
    list.erase(p);
    list.insert(p, q);
  }
  if (movable::concerns(p) || p.sorted != piece::in_movable::no) movable_.after_change(p, false);
}

void arena::change_large(piece& p, bool was, bool is) noexcept {
  if (was && is) {
    p.in->large->change(p);
  } else if (was) {
    p.in->large->erase(p);
    list_of(p).insert(p);
  } else {
    list_of(p).erase(p);
    p.in->large->insert(p);
  }
  movable_.after_change(p, is);
}

[[gnu::always_inline]] inline void arena::put_free(piece& p) noexcept {
  p.is = state::free;
  piece* const left = p.before && p.before->is == state::free && !apart(p) ? p.before : nullptr;
  piece* const right = p.after && p.after->is == state::free && !apart(*p.after) ? p.after : nullptr;
  if (!left && !right) return enlist(p);
  if (left && right) delist(*right);
  piece& stays = left ? *left : *right;
  before_change(stays);
  if (left) {
    absorb_next(*left);
    if (right) absorb_next(*left);
  } else {
    absorb_previous(*right);
  }
  after_change(stays);
}

void arena::put_gap(piece& p) noexcept {
  p.is = state::gap;
  p.freed = 0;
  piece* self = &p;
  if (p.before && p.before->is == state::gap && !apart(p)) {
    self = p.before;
    gap_erase(*self);
    absorb_next(*self);
  }
  if (self->after && self->after->is == state::gap && !apart(*self->after)) {
    gap_erase(*self->after);
    absorb_next(*self);
  }
  gap_insert(*self);
}

[[gnu::always_inline]] inline piece* arena::cut_out(piece* p, address at, std::size_t bytes) {
  // Both cuts may allocate, so this comes before anything changes.
  stock(2);
  if (at > p->at) [[unlikely]] {
    p = carve_inside(*p, at, bytes);
  } else if (p->bytes == bytes) {
    delist(*p);
  } else {  // the remainder stays the same object
    piece* const front = make(*p->in, at, bytes, state::live);
    front->freed = p->freed;
    link_before(*p, *front);
    before_change(*p);
    p->at += bytes, p->bytes -= bytes;
    after_change(*p);
    p = front;
  }
  p->is = state::live;
  p->in->enter_block(*p, p->at);
  return p;
}

piece* arena::carve(piece* p, address at, std::size_t bytes) { return cut_out(p, at, bytes); }

piece* arena::take(std::size_t bytes, std::size_t alignment) {
  auto const fits = [](piece const&) { return true; };  // every block begins at a multiple of the unit
  if (alignment > bins::unit) [[unlikely]] return take_if(bytes, alignment, fits);
  piece* found = nullptr;
  if (is_for_large(bytes)) {
    found = first_large_->find(bytes);
    if (!found && regions_.size() > 1) [[unlikely]] found = lowest(bytes, fits);
  } else {
    found = tightest(bytes, fits);
  }
  return found ? cut_out(found, found->at, bytes) : nullptr;
}

piece* arena::carve_inside(piece& p, address at, std::size_t bytes) noexcept {
  before_change(p);
  piece* const right = cut(p, at);
  after_change(p);
  if (right->bytes > bytes) enlist(*cut(*right, at + bytes));
  return right;
}

void arena::give(piece& p, std::uint64_t freed) noexcept {
  p.is == state::slab ? p.in->leave(p) : p.in->leave_block(p.at);
  p.freed = freed;
  newest_given_ = std::max(newest_given_, freed);
  p.home = nullptr, p.requested = 0, p.cut = nullptr;
  p.marks.clear();
  put_free(p);
}

void arena::add_region(region& r, state is) {
  base::make_room(regions_);
  if (is == state::gap && r.bytes / r.page_bytes < lowest_fit::most_pages)
    r.large = std::make_unique<lowest_fit>(r.bytes / r.page_bytes + 1);
  stock(2);
  // Nothing below allocates.
  piece* const p = make(r, r.base, r.bytes, is);
  regions_.push_back(&r);
  know_first_region();
  r.first = p;
  if (is == state::free) return enlist(*p);
  if (r.runs < p->end()) {
    gap_insert(*cut(*p, r.runs));
    has_runs_ = true;
  }
  gap_insert(*p);
}

void arena::drop_region(region& r) noexcept {
  piece* const p = r.first;
  p->is == state::free ? delist(*p) : gap_erase(*p);
  spare_.push_back(p);
  r.first = nullptr;
  std::erase(regions_, &r);
  know_first_region();
}

std::size_t arena::largest_free() const noexcept {
  std::size_t best = 0;
  each_free([&](piece const& p) { best = std::max(best, p.bytes); });
  return best;
}

piece* arena::commit_run(growth_plan& g) {
  piece* p = g.window;
  if (g.block > p->at) {
    piece* const right = cut(*p, g.block);
    settle_reserved(*p);
    p = right;
  }
  if (p->bytes > g.bytes) settle_reserved(*cut(*p, g.block + g.bytes));
  return p;
}

piece* arena::commit(growth_plan& g) {
  piece* const p = commit_run(g);
  p->is = state::live;
  p->in->enter(*p);
  return p;
}

void arena::settle_reserved(piece& window) noexcept {
  piece* p = &window;
  region& r = *p->in;
  address const end = p->end();
  for (address a = p->at; a < end;) {  // ranges of mapped, and of unmapped pages
    handle* const h = r.page(a);
    address b = a;
    while (b < end && (r.page(b) != nullptr) == (h != nullptr))
      b = std::min<address>(end, round_down(b - r.base, r.page_bytes) + r.base + r.page_bytes);
    piece* const rest = b < end ? cut(*p, b) : nullptr;
    h ? put_free(*p) : put_gap(*p);
    a = b;
    p = rest;
  }
}

piece* arena::reserve(piece& free, address from, address to) {
  stock(3);
  piece* p = &free;
  delist(*p);
  if (from > p->at) {
    piece* const right = cut(*p, from);
    enlist(*p);
    p = right;
  }
  if (p->end() > to) enlist(*cut(*p, to));
  p->is = state::reserved;
  return p;
}

piece* arena::reserve_gap(address from, std::size_t bytes) {
  stock(3);
  piece* p = gap_places_.around(from, bytes);
  if (!p) return nullptr;
  gap_erase(*p);
  if (from > p->at) {
    piece* const right = cut(*p, from);
    gap_insert(*p);
    p = right;
  }
  if (p->bytes > bytes) gap_insert(*cut(*p, from + bytes));
  p->is = state::reserved;
  return p;
}

void arena::validate(std::vector<std::string>& wrong, std::string const& who) const {
  auto say = [&](char const* what, address at) { wrong.push_back(who + ": " + what + " at " + std::to_string(at)); };
  std::size_t binned = 0, free_seen = 0, gaps_listed = 0, gaps_seen = 0, spans = 0, unsorted = 0;
  each_free([&](piece const& p) {
    ++binned;
    if (p.is != state::free) say("only free pieces are binned", p.at);
    if (!is_nobodys(p)) say("what is free has no home, no marks and no slab", p.at);
    if (p.leaf == piece::no_leaf && bins::bin_of(p.bytes) != p.bin) say("a piece is in the bin of its size", p.at);
    bool const noted = p.sorted == (is_large(p) ? piece::in_movable::unsorted : piece::in_movable::noted),
               listed = p.sorted == piece::in_movable::listed;
    if (movable::concerns(p) != (p.sorted != piece::in_movable::no))
      say("a free piece of a page and more may hold whole handles", p.at);
    if (movable::concerns(p) && !noted && (listed ? p.span : 0) != bytes_whole(p))
      say("a free piece knows which of its handles lie wholly inside", p.at);
    spans += listed;
    unsorted += p.sorted == piece::in_movable::unsorted;
  });
  for (bins const* some : {&gaps_, &gap_runs_}) {
    some->each([&](piece const& g) {
      ++gaps_listed;
      if (g.is != state::gap || (g.at >= g.in->runs) != (some == &gap_runs_))
        say("only gaps are listed as gaps, by their part", g.at);
    });
  }
  for (region const* r : regions_) {
    address at = r->base;
    piece const* before = nullptr;
    std::size_t large_seen = 0;
    std::size_t const large_listed = r->large ? r->large->validate([&](std::size_t leaf) {
      say("a large free piece is listed where it begins, of leaf", leaf);
    })
                                              : 0;
    for (piece const* p = r->first; p; before = p, p = p->after) {
      if (p->at % bins::unit || p->bytes % bins::unit) say("pieces begin and end at multiples of the unit", p->at);
      if (p->at != at || p->before != before || p->in != r || p->bytes == 0) say("pieces lie side by side", p->at);
      at = p->end();
      free_seen += p->is == state::free;
      bool const large = p->is == state::free && is_large(*p);
      large_seen += large;
      if (large != (p->leaf != piece::no_leaf)) say("a large free piece knows its leaf, and no other does", p->at);
      gaps_seen += p->is == state::gap;
      if (before && before->at < r->runs && p->end() > r->runs && p->at < r->runs)
        say("no piece lies on both sides of the runs", p->at);
      if (before && !apart(*p) && before->is == p->is && (p->is == state::free || p->is == state::gap))
        say("no two neighbours are both free, or both gap", p->at);
      bool const entered = p->is == state::live || p->is == state::pending || p->is == state::slab;
      if (entered && (r->covering(p->at) != p || r->covering(p->end() - 1) != p))
        say("a block is found by its addresses", p->at);
      if (!entered && r->covering(p->at)) say("what is no block is not found", p->at);
      if (p->is == state::reserved) continue;
      for (address a = p->at; a < p->end();) {
        handle const* const h = r->page(a);
        if ((h != nullptr) == (p->is == state::gap)) say("what is not gap is mapped, and gaps are not", a);
        address const next = h ? h->at + h->bytes : round_down(a - r->base, r->page_bytes) + r->base + r->page_bytes;
        if (next <= a) {
          say("a handle's pages are all its own", a);
          break;
        }
        a = next;
      }
    }
    if (at != r->base + r->bytes) say("pieces leave nothing out", at);
    if (large_seen != large_listed) say("only large free pieces are listed by address", r->base);
  }
  if (!std::all_of(spare_.begin(), spare_.end(), [](piece const* p) {
        return is_nobodys(*p) && p->leaf == piece::no_leaf && p->sorted == piece::in_movable::no;
      }))
    say("a piece to spare is nobody's and in no list", 0);
  if (unsorted != movable_.unsorted()) say("large pieces that are not sorted are counted", 0);
  if (spans != movable_.listed()) say("every piece with whole handles is listed by them", 0);
  if (binned != free_seen || binned != free_pieces()) say("every free piece is binned", 0);
  if (gaps_listed != gaps_seen) say("every gap is listed", 0);
}

}  // namespace weir::memory
