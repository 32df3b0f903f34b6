// The slow half of arena.h: cutting, merging and reserving blocks.
// Threads: as arena.h.
#include "runtime/memory/blocks/arena.h"
#include "runtime/base/room.h"

#include <algorithm>

namespace weir::memory {

// Invariant: a spare block has no home, no marks, no slab and no requested size.
inline heap_block* arena::make(region& r, address at, std::size_t bytes, state is) noexcept {
  heap_block* const p = spare_.back();
  spare_.pop_back();
  p->at = at, p->bytes = bytes, p->in = &r, p->is = is;
  p->before = p->after = nullptr;
  p->freed = 0;
  return p;
}

void arena::stock_up(std::size_t blocks) {
  while (spare_.size() < blocks) {
    // so that returning a block to spare_ never allocates
    if (spare_.capacity() <= blocks_.size())
      spare_.reserve(2 * blocks_.size() + blocks);
    spare_.push_back(&blocks_.emplace_back());
  }
}

[[gnu::always_inline]] inline void arena::link_after(heap_block& left, heap_block& right) noexcept {
  right.before = &left;
  right.after = left.after;
  if (left.after)
    left.after->before = &right;
  left.after = &right;
}

[[gnu::always_inline]] inline void arena::link_before(heap_block& right, heap_block& left) noexcept {
  left.after = &right;
  left.before = right.before;
  (right.before ? right.before->after : right.in->first) = &left;
  right.before = &left;
}

[[gnu::always_inline]] inline void arena::absorb_previous(heap_block& p) noexcept {
  heap_block* const gone = p.before;
  WEIR_RULE(gone->end() == p.at, "a block does not begin where the block before it ends");
  p.at = gone->at;
  p.bytes += gone->bytes;
  p.freed = std::max(p.freed, gone->freed);
  p.before = gone->before;
  (p.before ? p.before->after : p.in->first) = &p;
  WEIR_RULE(p.freed >= gone->freed, "a block that was merged has an older free stamp than a part of it");
  WEIR_RULE(is_spare(*gone), "a spare block node is in use or listed");
  spare_.push_back(gone);
}

heap_block* arena::split(heap_block& p, address at) {
  WEIR_RULE(at > p.at && at < p.end() && at % bins::unit == 0,
            "a block does not begin and end at a multiple of the unit");
  stock(1);
  heap_block* const right = make(*p.in, at, p.end() - at, p.is);
  right->freed = p.freed;
  p.bytes = at - p.at;
  link_after(p, *right);
  if (opening_index::is_solid(p)) {
    if (opening_index* const openings = rooms_of(p))
      openings->split(p, *right);
  }
  return right;
}

void arena::enlist(heap_block& p) noexcept {
  WEIR_RULE(p.is == state::free, "a bin holds a block that is not free");
  WEIR_RULE(is_spare(p), "a free block has a home, a mark or a slab, or is listed twice");
  bool const large = is_large(p);
  large ? p.in->large->insert(p) : list_of(p).insert(p);
  whole_handles_.insert(p, large);
  ++listed_;
}

// Requires: nothing of the block has changed yet.
void arena::delist(heap_block& p) noexcept {
  WEIR_RULE(p.is == state::free && listed_ > 0, "a free block is in no bin");
  whole_handles_.erase(p);
  p.leaf == heap_block::no_leaf ? list_of(p).erase(p) : p.in->large->erase(p);
  --listed_;
}

// A free block that shrinks or grows stays the same object, so that most lists need no change.
[[gnu::always_inline]] inline void arena::before_change(heap_block& p) noexcept {
  whole_handles_.before_change(p);
}

[[gnu::always_inline]] inline void arena::after_change(heap_block& p) noexcept {
  // The usual change: only the index by address is told.
  bool const stays_large = p.leaf != heap_block::no_leaf && p.bytes >= p.in->large_bytes;
  if (stays_large && p.sorted == heap_block::index_state::unsorted) [[likely]]
    return p.in->large->change(p);
  change_lists(p);
}

void arena::change_lists(heap_block& p) noexcept {
  bool const was_large = p.leaf != heap_block::no_leaf, is_now = is_large(p);
  if (was_large || is_now)
    return change_large(p, was_large, is_now);
  if (int const q = bins::bin_of(p.bytes); q != p.bin) {
    bins& list = list_of(p);
    list.erase(p);
    list.insert(p, q);
  }
  WEIR_RULE(bins::bin_of(p.bytes) == p.bin, "a free block is in the bin of another size");
  // A block that was, and is, below a page is not in the index of whole handles.
  if (whole_handle_index::concerns(p) || p.sorted != heap_block::index_state::no)
    whole_handles_.after_change(p, false);
}

void arena::change_large(heap_block& p, bool was_large, bool is_now) noexcept {
  if (was_large && is_now) {
    p.in->large->change(p);
  } else if (was_large) {
    p.in->large->erase(p);
    list_of(p).insert(p);
  } else {
    list_of(p).erase(p);
    p.in->large->insert(p);
  }
  whole_handles_.after_change(p, is_now);
}

[[gnu::always_inline]] inline void arena::put_free(heap_block& p) noexcept {
  open_around(p);
  p.is = state::free;
  WEIR_RULE(p.in->page(p.at), "an unmapped block has a handle, or another block has none");
  heap_block* const left = p.before && p.before->is == state::free && !apart(p) ? p.before : nullptr;
  heap_block* const right = p.after && p.after->is == state::free && !apart(*p.after) ? p.after : nullptr;
  if (!left && !right) {
    check_place(p);
    return enlist(p);
  }
  // A free neighbour grows and stays listed. Of two the left one does, and the right one goes.
  if (left && right)
    delist(*right);
  heap_block& stays = left ? *left : *right;
  before_change(stays);
  if (left) {
    absorb_next(*left);  // p
    if (right)
      absorb_next(*left);
  } else {
    absorb_previous(*right);
  }
  check_place(stays);
  after_change(stays);
}

void arena::put_unmapped(heap_block& p) noexcept {
  open_around(p);
  p.is = state::unmapped;
  p.freed = 0;
  WEIR_RULE(!p.in->page(p.at), "an unmapped block has a handle, or another block has none");
  heap_block* merged = &p;
  if (p.before && p.before->is == state::unmapped && !apart(p)) {
    merged = p.before;
    erase_unmapped(*merged);
    absorb_next(*merged);  // p
  }
  if (merged->after && merged->after->is == state::unmapped && !apart(*merged->after)) {
    erase_unmapped(*merged->after);
    absorb_next(*merged);
  }
  check_place(*merged);
  insert_unmapped(*merged);
}

[[gnu::always_inline]] inline heap_block* arena::cut_out(heap_block* p, address at, std::size_t bytes) {
  WEIR_RULE(p->is == state::free && at >= p->at && at + bytes <= p->end(), "a block is cut out of what is not free");
  // Up to two blocks are made below. This may throw, so it comes before anything changes.
  stock(2);
  if (at > p->at) [[unlikely]] {
    p = carve_inside(*p, at, bytes);
  } else if (p->bytes == bytes) {
    delist(*p);
  } else {  // a new block in front: the remainder stays the same object, and listed
    heap_block* const front = make(*p->in, at, bytes, state::live);
    front->freed = p->freed;
    link_before(*p, *front);
    before_change(*p);
    p->at += bytes, p->bytes -= bytes;
    after_change(*p);
    p = front;
  }
  p->is = state::live;
  close_around(*p);
  p->in->table.enter_block(*p, p->at);
  return p;
}

heap_block* arena::carve(heap_block* p, address at, std::size_t bytes) {
  return cut_out(p, at, bytes);
}

heap_block* arena::take(std::size_t bytes, std::size_t alignment) {
  if (places_first()) [[unlikely]]
    return take_chosen(bytes, alignment);
  // Every block begins at a multiple of the unit, so that any of enough bytes will do.
  auto const fits = [](heap_block const&) { return true; };
  if (alignment > bins::unit) [[unlikely]]
    return take_if(bytes, alignment, fits);
  heap_block* found = nullptr;
  if (is_for_large(bytes)) {
    found = first_large_->find(bytes);  // without the walk of lowest()
    if (!found && regions_.size() > 1) [[unlikely]]
      found = lowest(bytes, fits);
  } else {
    found = tightest(bytes, fits);
  }
  return found ? cut_out(found, found->at, bytes) : nullptr;
}

heap_block* arena::carve_inside(heap_block& p, address at, std::size_t bytes) noexcept {
  before_change(p);
  heap_block* const right = split(p, at);
  after_change(p);
  // `right` is in no list yet: the block that is wanted, and perhaps a free rest behind it.
  if (right->bytes > bytes)
    enlist(*split(*right, at + bytes));
  return right;
}

void arena::give(heap_block& p, std::uint64_t freed) noexcept {
  WEIR_RULE(p.is == state::live || p.is == state::pending || p.is == state::slab,
            "a block that is not in use is given back");
  WEIR_RULE(p.is == state::slab || p.in->table.starting_near(p.at) == &p, "a block is not found by its addresses");
  p.is == state::slab ? p.in->table.leave(p) : p.in->table.leave_block(p.at);
  p.freed = freed;
  newest_given_ = std::max(newest_given_, freed);
  p.home = nullptr, p.requested = 0, p.in_slab = nullptr;
  p.users.clear();
  put_free(p);
}

void arena::note_arrival(growth_plan& g, std::uint64_t freed) noexcept {
  g.reserved->freed = std::max(g.reserved->freed, freed);
  newest_given_ = std::max(newest_given_, freed);
}

void arena::add_region(region& r, state is) {
  base::make_room(regions_);
  if (is == state::unmapped && r.bytes / r.page_bytes < lowest_fit::most_pages)
    r.large = std::make_unique<lowest_fit>(r.bytes / r.page_bytes + 1);
  stock(2);
  // Nothing below allocates.
  heap_block* const p = make(r, r.base, r.bytes, is);
  regions_.push_back(&r);
  know_first_region();
  r.first = p;
  if (is == state::free)
    return enlist(*p);
  if (r.runs < p->end()) {
    insert_unmapped(*split(*p, r.runs));
    has_runs_ = true;
  }
  insert_unmapped(*p);
}

void arena::place(places how) {
  by_openings_ = false;
  if (how == places::mapped)
    return;
  for (region* r : regions_)
    if (!r->rooms && r->large && r->bytes < opening_index::most_bytes)
      r->rooms = std::make_unique<opening_index>(*r);
  // The first region decides for all, as in know_first_region().
  by_openings_ = !regions_.empty() && regions_.front()->rooms;
}

void arena::drop_region(region& r) noexcept {
  heap_block* const p = r.first;
  p->is == state::free ? delist(*p) : erase_unmapped(*p);
  WEIR_RULE(is_spare(*p), "a spare block node is in use or listed");
  spare_.push_back(p);
  r.first = nullptr;
  std::erase(regions_, &r);
  know_first_region();
}

std::size_t arena::largest_free() const noexcept {
  std::size_t best = 0;
  each_free([&](heap_block const& p) { best = std::max(best, p.bytes); });
  return best;
}

heap_block* arena::commit_run(growth_plan& g) {
  heap_block* p = g.reserved;
  // The plan took whole pages: what lies before the block, and behind it, is not needed.
  if (g.block > p->at) {
    heap_block* const right = split(*p, g.block);
    end_reservation(*p);
    p = right;
  }
  if (p->bytes > g.bytes)
    end_reservation(*split(*p, g.block + g.bytes));
  return p;
}

heap_block* arena::commit(growth_plan& g) {
  heap_block* const p = commit_run(g);
  p->is = state::live;
  p->in->table.enter(*p);
  return p;
}

void arena::end_reservation(heap_block& reserved) noexcept {
  WEIR_RULE(reserved.is == state::reserved, "a reservation ends that is none");
  region& r = *reserved.in;
  address const end = reserved.end();
  // One block for each range of pages that are all mapped, or all unmapped.
  for (heap_block* p = &reserved; p;) {
    bool const is_mapped = r.page(p->at) != nullptr;
    address to = p->at;
    while (to < end && (r.page(to) != nullptr) == is_mapped) {
      address const next_page = round_down(to - r.base, r.page_bytes) + r.base + r.page_bytes;
      to = std::min(end, next_page);
    }
    heap_block* const rest = to < end ? split(*p, to) : nullptr;
    if (is_mapped)
      put_free(*p);
    else
      put_unmapped(*p);
    p = rest;
  }
}

heap_block* arena::reserve(heap_block& free, address from, address to) {
  stock(3);
  heap_block* p = &free;
  delist(*p);
  if (from > p->at) {
    heap_block* const right = split(*p, from);
    enlist(*p);
    p = right;
  }
  if (p->end() > to)
    enlist(*split(*p, to));
  p->is = state::reserved;
  close_around(*p);
  return p;
}

bool arena::reserve_whole_handles(heap_block& p, std::size_t want, std::size_t& found, std::vector<released>& out) {
  std::size_t const before = out.size();
  try {
    released& r = out.emplace_back(released{nullptr, p.in, {}});
    for (handle const* h = first_whole(p); h && found < want; h = next_whole(p, *h)) {
      r.handles.push_back(*h);
      found += h->bytes;
    }
    r.place = reserve(p, r.handles.front().at, r.handles.back().at + r.handles.back().bytes);
    return true;
  } catch (std::bad_alloc const&) {
    out.resize(before);
    return false;
  }
}

heap_block* arena::reserve_unmapped(address from, std::size_t bytes) {
  stock(3);
  heap_block* p = unmapped_by_address_.around(from, bytes);
  if (!p)
    return nullptr;
  erase_unmapped(*p);
  if (from > p->at) {
    heap_block* const right = split(*p, from);
    insert_unmapped(*p);
    p = right;
  }
  if (p->bytes > bytes)
    insert_unmapped(*split(*p, from + bytes));
  p->is = state::reserved;
  close_around(*p);
  return p;
}

}  // namespace weir::memory
