// More memory for one stream when nothing mapped of its own fits: what waits, what others left, new pages.
// Threads: any. Plans under the stream's lock, calls the driver without it, then commits or rolls back.
#include <algorithm>

#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {
void* device_allocator::cold(stream_memory& mine, request const& r) {
  refuse_captured(r.home, r);
  if (std::size_t const needs = space_.maps() ? round_up(r.rounded, space_.page_bytes()) : r.rounded;
      can_never_hold(needs))
    refuse(r, needs);
  std::size_t spare = 0;
  if (!due_its_own(mine, r, spare)) {
    if (void* const p = reuse(mine, r)) return p;
  }
  void* out = nullptr;
  driver::status const s = grow(mine, r, out, spare);
  if (s.ok()) {
    if (!streams_.many()) (void)most_reserved(used(), 0);  // else grow() has noted it
    return out;
  }
  if (s.what == driver::code::out_of_memory) return ladder(mine, r, s);
  note(s);
  throw_refusal(s, "allocate", std::to_string(r.bytes) + " B on gpu:" + std::to_string(device_), "", r.at);
}

// Whatever is freed. What is reserved already may be more than a limit that was set later, and serves on.
bool device_allocator::can_never_hold(std::size_t bytes) const {
  std::size_t const limit = counts_.limit();
  return bytes > space_.info().total_memory || (limit && bytes > limit && bytes > counts_.reserved());
}

// Before anything is emptied, asked or waited for.
void device_allocator::refuse(request const& r, std::size_t needs) {
  memory_report why = report();
  why.requested = r.bytes;
  why.rounded = needs;
  throw_out_of_memory(r, why);
}

driver::status device_allocator::grow(stream_memory& mine, request const& r, void*& out, std::size_t spare) {
  if (!space_.maps()) return grow_segment(mine, r, out);
  if (has_room_for_long_run(mine, r)) {
    driver::status const s = grow_by(mine, r, run_length::as_slabs_are_many, out, spare);
    if (s.what != driver::code::out_of_memory) return s;
  }
  return grow_by(mine, r, run_length::usual, out, spare);
}

// Within the bound, that is: a run that is longer than it has to be makes nothing move.
bool device_allocator::has_room_for_long_run(stream_memory& mine, request const& r) {
  if (r.size_class < 0) return false;
  std::size_t bytes = 0;
  {
    section const hold(mine);
    bytes = mine.small.next_run_bytes(r.size_class);
  }
  return bytes > slabs::usual_run_bytes && counts_.reserved() + bytes <= most_reserved(used(), r.rounded);
}

driver::status device_allocator::grow_by(stream_memory& mine, request const& r, run_length how, void*& out,
                                         std::size_t spare) {
  traffic::flowing const coming(traffic_);
  growth g;
  {
    section const hold(mine);
    if ((out = warm_or_shed(mine, r))) return {};  // freed meanwhile, or by the rung before
    std::size_t const bytes = r.size_class < 0           ? r.rounded
                              : how == run_length::usual ? mine.small.usual_next_run_bytes(r.size_class)
                                                         : mine.small.next_run_bytes(r.size_class);
    std::size_t const alignment = r.size_class < 0 ? r.alignment : slabs::run_alignment(r.size_class);
    if (bytes > space_.info().total_memory) return {driver::code::out_of_memory};
    auto const planned = [&](bool thorough) {
      bool const run = r.size_class >= 0 && mine.pieces.has_runs();
      return plan(mine, bytes, alignment, run ? arena::part::runs : arena::part::blocks, g, thorough);
    };
    if (!planned(false)) {
      std::size_t has = 0;
      for (region const* r : mine.pieces.regions()) has += r->bytes;
      region* const more = space_.take(bytes + alignment, mine, has);
      if (more) mine.pieces.add_region(*more, state::gap);
      bool const found = planned(!more) || plan(mine, bytes, alignment, arena::part::blocks, g, true) ||
                         plan(mine, bytes, alignment, arena::part::runs, g, true);
      if (!found) return no_addresses;
    }
    g.spare = spare, g.run = r.size_class >= 0;  // a plan makes all of it anew
  }
  region& in = *g.window->in;
  mapped made;
  driver::status const s = fill(mine, g, r.rounded, made);
  if (!s.ok()) undo(made);
  std::size_t kept = made.orphaned;
  for (handle const& h : made.handles) kept += h.bytes;
  section const hold(mine);
  counts_.gave(kept, made.charged - kept);
  for (handle const& h : made.handles) {
    auto place = made.places.extract(h.at);
    static_cast<handle&>(place.mapped()) = h;
    in.set_pages(h, &mine.handles.insert(std::move(place)).position->second);
    note_mapped(mine, h);
  }
  while (!made.arrived.empty()) {
    homed_handle& h = mine.handles.insert(made.arrived.extract(made.arrived.begin())).position->second;
    in.set_pages(h, &h);
    counts_.handle_moved();
    mine.counts.mapped(static_cast<std::int64_t>(h.bytes));
    tell_mapped(mine, h, observe::action::map);
  }
  if (made.arrived_ordered) g.window->freed = std::max(g.window->freed, mine.home.load()->now().n);
  if (!s.ok()) {
    mine.pieces.roll_back(g);
    // mapped, and the driver lets nobody use it nor take it back: its place stays taken
    for (handle const& h : made.handles) {
      if (!(h.readers & own_bit())) mine.unusable.push_back({mine.pieces.reserve_home(h), &in, {h}});
    }
    note(s);
    return s;
  }
  counts_.missed();
  if (streams_.many()) most_live_.raise(static_cast<std::size_t>(g.live_before) + r.rounded);
  if (r.size_class < 0) {
    out = hand_out(mine, *mine.pieces.commit(g), r, nullptr);
  } else {
    cut_run(mine, *mine.pieces.commit_run(g), r.size_class);
    out = hand_out(mine, mine.small.take(r.size_class, r.bytes), r);
  }
  return {};
}

driver::status device_allocator::grow_segment(stream_memory& mine, request const& r, void*& out) {
  std::size_t bytes = 0;
  {
    section const hold(mine);
    if ((out = warm_or_shed(mine, r))) return {};
    bytes = r.size_class < 0 ? r.rounded + (r.alignment > bins::unit ? r.alignment : 0)
                             : mine.small.usual_next_run_bytes(r.size_class) + granule;
  }
  bytes = round_up(bytes, space_.page_bytes());
  if (bytes > space_.info().total_memory || !counts_.charge(bytes)) return {driver::code::out_of_memory};
  auto const got = machine_.create_segment(device_, bytes);
  counts_.gave(got.ok() ? bytes : 0, got.ok() ? 0 : bytes);
  if (!got.ok()) {
    note(got.is);
    return got.is;
  }
  section const hold(mine);
  region* in = nullptr;
  handle const h{driver::memory_handle::none, got.value, bytes, own_bit()};
  try {
    in = space_.adopt_segment(got.value, bytes, mine);
    in->set_pages(h, &(mine.handles[h.at] = homed_handle{h}));
    mine.pieces.add_region(*in, state::free);
  } catch (std::bad_alloc const&) {  // the host's memory
    mine.handles.erase(h.at);
    if (in) space_.drop(space_.set_aside(*in));
    if (machine_.release_segment(device_, h.at).ok()) counts_.refund(bytes);
    throw;
  }
  note_mapped(mine, h);
  counts_.missed();
  out = warm(mine, r);
  return out ? driver::status{} : driver::status{driver::code::out_of_memory};
}

}  // namespace weir::memory
