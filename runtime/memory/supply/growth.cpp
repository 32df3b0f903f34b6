// More memory for one heap: a plan, its handles, the commit.
// Threads: as growth.h.
#include "runtime/memory/supply/growth.h"

#include <algorithm>

namespace weir::memory {

driver::status growth::grow(stream_heap& mine, alloc_request const& r, void*& out, std::size_t spare) {
  if (!of_.space.maps())
    return grow_segment(mine, r, out);
  spare += width_for(mine, r);
  if (has_room_for_long_run(mine, r)) {
    driver::status const s = grow_by(mine, r, how::long_run, out, spare);
    // Out of memory for a long run: a shorter one may do.
    if (s.what != driver::code::out_of_memory)
      return s;
  }
  driver::status const s = grow_by(mine, r, how::usual, out, spare);
  bool const short_of_pages = s.what == driver::code::out_of_memory && !(s == driver::no_addresses);
  if (!short_of_pages)
    return s;
  // Another place may lack fewer pages.
  return grow_by(mine, r, how::fewest_new_pages, out, spare);
}

std::size_t growth::width_for(stream_heap const& mine, alloc_request const& r) {
  std::size_t const width = bound_.width(mine.pool());
  if (!width)
    return 0;
  std::size_t const most = bound_.most(bound_.now(), r.rounded), after = of_.counts.reserved() + r.rounded;
  // Within the bound the driver is not asked.
  if (after <= most)
    return width;
  if (bound_.leaves_margin(r.rounded))
    return width;
  narrow();
  return 0;
}

void growth::narrow() {
  if (!bound_.narrow())
    return;
  std::size_t const most = bound_.most(bound_.now(), 0), reserved = of_.counts.reserved();
  if (reserved > most)
    (void)return_.some(reserved - most);
}

arena::places growth::places_for(stream_heap const& mine) const {
  // No handle moves to where the block goes, so it goes where memory is mapped.
  if (of_.deterministic || mine.readers())
    return arena::places::mapped;
  // While there is room, none has to move.
  if (!of_.counts.limit() && !of_.is_nearly_full())
    return arena::places::mapped;
  return arena::places::openings;
}

driver::status growth::grow_there(stream_heap& in, place& where, alloc_request const& r, void*& out) {
  if (of_.space.maps())
    return grow_by(in, r, how::usual, out, 0, &where);
  out = session(in).take_anywhere(r);
  return out ? driver::status{} : driver::status{driver::code::out_of_memory};
}

// Within the bound, that is: a run that is longer than it has to be makes nothing move.
bool growth::has_room_for_long_run(stream_heap& mine, alloc_request const& r) {
  if (r.size_class < 0)
    return false;
  std::size_t const bytes = session(mine).next_run_bytes(r.size_class);
  return bytes > slabs::usual_run_bytes && of_.counts.reserved() + bytes <= bound_.most(bound_.now(), r.rounded);
}

driver::status growth::grow_by(stream_heap& mine, alloc_request const& r, how way, void*& out, std::size_t spare,
                               place* only) {
  mapping_lock::shared const coming(memory_.changes);
  memory_pool& pool = mine.pool();
  if (pool.is_asleep())
    return asleep;
  growth_plan g;
  {
    session in(mine);
    in.place(places_for(mine));
    // A block may have come free since the caller's search.
    out = only ? in.take_anywhere(r) : in.take_or_shed(r);
    if (out)
      return {};
    // A registered pool has one handle, which takes all of its limit: it never grows again.
    if (pool.rules().one_handle && pool.now().charged)
      return {driver::code::out_of_memory};
    driver::status const planned = plan(in, r, way, only, g);
    if (!planned.ok())
      return planned;
    g.spare = spare;
  }

  physical_memory::batch made;
  made.home = &mine.home();
  driver::status const s = fill(mine, g, r.rounded, made);
  // With its aliases gone, it is known what the place lacks.
  if (only && g.is_clear)
    only->missing = g.missing_bytes;
  if (!s.ok())
    memory_.undo(made);

  // What was charged in vain is refunded. The pool pays for what is mapped or came from other pools. The
  // device pays for what is mapped, and for orphans.
  std::size_t mapped = 0;
  for (handle const& h : made.handles)
    mapped += h.bytes;
  pool.refund(made.of_pool - mapped - made.from_other_pools);
  session in(mine);
  std::size_t const kept = mapped + made.orphaned;
  of_.counts.gave(kept, made.charged - kept);
  settle(in, g, made, mapped);
  if (!s.ok()) {
    roll_back(in, g, made);
    of_.note_status(s);
    return s;
  }
  of_.counts.missed();
  out = in.commit(g, r);
  // Of several heaps no peak tells the most that was live. All that is mapped for a graph counts as live.
  bound_.raise(static_cast<std::size_t>(g.live_before) + (mine.rules().pages_stay ? kept : r.rounded));
  return s;
}

// Reserves a window for the request.
driver::status growth::plan(session& mine, alloc_request const& r, how way, place const* only, growth_plan& g) {
  std::size_t bytes = r.rounded, alignment = r.alignment;
  if (r.size_class >= 0) {
    bytes = way == how::long_run ? mine.next_run_bytes(r.size_class) : mine.usual_next_run_bytes(r.size_class);
    alignment = slabs::run_alignment(r.size_class);
  }
  if (bytes > of_.space.info().total_memory)
    return {driver::code::out_of_memory};
  auto const find_in = [&](arena::zone part, bool thorough) {
    return mover_.plan(mine, bytes, alignment, part, g, thorough);
  };
  auto const find_in_usual_part = [&](bool thorough) {
    bool const run = r.size_class >= 0 && mine.has_runs();
    return find_in(run ? arena::zone::runs : arena::zone::blocks, thorough);
  };
  bool found = only ? find_in(only->part, true) : find_in_usual_part(way == how::fewest_new_pages);
  if (!found && !only) {
    bool const more = take_region(mine, bytes + alignment);
    mine.place(places_for(mine.heap()));  // so that a new region is searched by openings, too
    // The usual part again: all of it, unless there is a new region to look at. Then all of either part.
    found = find_in_usual_part(!more) || find_in(arena::zone::blocks, true) || find_in(arena::zone::runs, true);
  }
  if (!found)
    return driver::no_addresses;
  // After the search, for a plan sets all of its members.
  g.run = r.size_class >= 0;
  g.by_openings = mine.places_first();
  return {};
}

// More addresses for a heap. Returns: whether there were some
bool growth::take_region(session& mine, std::size_t bytes) {
  region* const more = of_.space.take(bytes, mine.heap(), mine.address_bytes());
  if (!more)
    return false;
  // No part for runs: all that the pool has is one handle, and runs lie among its blocks.
  if (mine.heap().rules().one_handle)
    more->runs = more->base + more->bytes;
  mine.add_region(*more, state::unmapped);
  return true;
}

// Lists the handles made, of so many bytes, and those that have moved here.
void growth::settle(session& mine, growth_plan& g, physical_memory::batch& made, std::size_t mapped) {
  region& in = *g.reserved->in;
  for (handle const& h : made.handles)
    mine.list_made(in, h, made.places.extract(h.at));
  mine.log_mapping(mapped, "memory mapped");
  while (!made.arrived.empty())
    mine.list_arrived(in, made.arrived.extract(made.arrived.begin()));
  mine.note_arrival(g, made.arrived_freed);
}

// Requires: settle()
void growth::roll_back(session& mine, growth_plan& g, physical_memory::batch const& made) {
  region& in = *g.reserved->in;
  mine.roll_back(g);
  // The driver neither grants such a handle nor unmaps it: its place stays taken.
  for (handle const& h : made.handles) {
    if (!(h.readers & of_.own_bit()))
      mine.keep_unusable(in, h);
  }
}

driver::status growth::grow_segment(stream_heap& mine, alloc_request const& r, void*& out) {
  std::size_t bytes = 0;
  {
    session in(mine);
    // A block may have come free since the caller's search.
    out = in.take_or_shed(r);
    if (out)
      return {};
    // Room to align what is cut from it.
    if (r.size_class >= 0)
      bytes = in.usual_next_run_bytes(r.size_class) + granule;
    else
      bytes = r.rounded + (r.alignment > bins::unit ? r.alignment : 0);
  }
  bytes = round_up(bytes, of_.space.page_bytes());
  mapping_lock::shared const coming(memory_.changes);
  memory_pool& pool = mine.pool();
  if (bytes > of_.space.info().total_memory || !memory_.charge(pool, bytes))
    return {driver::code::out_of_memory};
  auto const got = of_.machine.create_segment(of_.device, bytes);
  if (!got.ok()) {
    memory_.refund(pool, bytes);
    of_.note_status(got.is);
    return got.is;
  }
  of_.counts.gave(bytes, 0);
  handle const h{driver::memory_handle::none, got.value, bytes, of_.own_bit()};
  bool entered = false;
  try {
    session in(mine);
    enter_segment(in, h);
    entered = true;
    in.log_mapping(h.bytes, "memory mapped");
    of_.counts.missed();
    out = in.take(r);
  } catch (std::bad_alloc const&) {
    // The lock is released: what the heap cannot list goes back to the driver.
    if (!entered) {
      if (of_.machine.release_segment(of_.device, h.at).ok())
        of_.counts.refund(bytes);
      pool.refund(bytes);
    }
    throw;
  }
  return out ? driver::status{} : driver::status{driver::code::out_of_memory};
}

void growth::enter_segment(session& mine, handle const& h) {
  region& in = *of_.space.adopt_segment(h.at, h.bytes, mine.heap());
  try {
    mine.enter_segment(in, h);
  } catch (std::bad_alloc const&) {  // the host's memory
    of_.space.drop(of_.space.set_aside(in));
    throw;
  }
}

}  // namespace weir::memory
