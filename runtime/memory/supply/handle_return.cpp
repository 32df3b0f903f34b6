// Releases handles that are wholly free and complete to the driver.
// Threads: as handle_return.h.
#include "runtime/memory/supply/handle_return.h"

#include <span>

namespace weir::memory {
namespace {

// Blocks that were freed up to there may go. Null: all
std::uint64_t last_number(clock::stamp const* freed) {
  return freed ? freed->n : ~std::uint64_t{0};
}

// No search may find a segment's region during its release. Requires: its heap's lock
void hide_segments(released const& g) {
  for (handle const& h : g.handles) {
    if (h.physical == driver::memory_handle::none)
      g.in->set_pages(h, nullptr);
  }
}

}  // namespace

std::size_t handle_return::some(std::size_t want, memory_pool const* only) {
  std::size_t bytes = 0;
  // Orphans are charged to no pool.
  if (!only)
    bytes = memory_.return_orphans();
  for (stream_heap* m : heaps_.all(only)) {
    if (bytes >= want)
      break;
    bytes += of(*m, want - bytes);
  }
  return bytes;
}

std::size_t handle_return::of(stream_heap& m, std::size_t want, clock::stamp const* freed) {
  mapping_lock::shared const going_back(memory_.changes);
  if (m.rules().pages_stay)
    return 0;
  std::size_t bytes = release_unusable(m);
  // In deterministic mode what goes must not depend on what is complete. So all of it is waited for, unless
  // ranks may wait for this thread. Empty runs become free before the wait, which includes their use then.
  if (of_.waits_for_all()) {
    session(m).return_empty_runs();
    m.finish();
  }
  for (bool driver_takes_all = true; driver_takes_all && bytes < want;) {
    leaving going = reserve_complete(m, want - bytes, freed);
    if (going.all.empty()) {
      // Nothing more is known to be complete. The driver may know better of the next one.
      if (!completes_when_asked(going.waits_for, freed))
        break;
      continue;
    }
    for (released& g : going.all) {
      std::size_t const gave = one(m, g);
      bytes += gave;
      driver_takes_all &= gave > 0;
    }
  }
  return bytes;
}

// Handles without access were kept because the driver refused them.
std::size_t handle_return::release_unusable(stream_heap& m) {
  std::size_t bytes = 0;
  std::vector<released> again = session(m).take_unusable();
  for (released& g : again)
    bytes += one(m, g);
  return bytes;
}

handle_return::leaving handle_return::reserve_complete(stream_heap& m, std::size_t want, clock::stamp const* freed) {
  std::uint64_t const last = last_number(freed);
  session in(m);
  if (m.rules().pages_stay)
    return {};  // a graph has taken it over meanwhile
  in.return_empty_runs();
  std::uint64_t const home = m.home().id();
  // Another home has the heap by now.
  if (freed && freed->stream != home)
    return {};
  // A block came free later, without a stamp of the home.
  if (freed && in.came_unstamped_after(last))
    return {};
  arena::first const which = of_.deterministic ? arena::first::lowest : arena::first::oldest;
  auto found = in.reserve_handles(want, which, [&](std::uint64_t n) {
    return n <= last && of_.clocks.complete({home, n});
  });
  for (released const& g : found.all)
    hide_segments(g);
  return {std::move(found.all), {home, found.waits_for}};
}

bool handle_return::completes_when_asked(clock::stamp s, clock::stamp const* freed) {
  if (!s.n || s.n > last_number(freed))
    return false;
  auto const done = of_.clocks.poll(s);
  return done.ok() && done.value;
}

std::size_t handle_return::one(stream_heap& m, released& g) {
  if (g.handles.front().physical == driver::memory_handle::none)
    return release_segment(m, g);
  std::size_t gone = 0;  // handles released, moved to the front
  physical_memory::batch back;
  std::size_t bytes = 0;
  for (handle& h : g.handles) {
    if (!mover_.drop_aliases(m.reserved_handle(h.at), 0))
      continue;  // memory that is mapped anywhere does not go
    driver::status const s = of_.machine.unmap(h.at, h.bytes);
    of_.note_status(s);
    if (!s.ok())
      continue;
    bytes += h.bytes;
    memory_.release(h.physical, h.bytes, back);
    std::swap(h, g.handles[gone++]);
  }
  session in(m);
  for (handle const& h : std::span(g.handles).first(gone))
    in.forget_handle(*g.in, h);
  in.log_mapping(bytes - back.orphaned, "memory returned to the driver");
  of_.counts.refund(bytes - back.orphaned);
  // A handle without access serves no block: it is tried again later.
  if (gone == 0 && !(g.handles.front().readers & of_.own_bit())) {
    in.keep_unusable(std::move(g));
    return 0;
  }
  in.release(g);
  return bytes - back.orphaned;
}

// As one(). First all forget the segment's address: another thread may get it as soon as the driver has it.
std::size_t handle_return::release_segment(stream_heap& m, released& g) {
  handle const h = g.handles.front();
  address_space::segment whole;
  session::handle_node its_place;
  {
    session in(m);
    whole = of_.space.set_aside(*g.in);
    its_place = in.detach_segment(h.at);
  }
  driver::status const s = of_.machine.release_segment(of_.device, h.at);
  of_.note_status(s);
  session in(m);
  if (!s.ok()) {
    of_.space.put_back(std::move(whole));
    in.attach_segment(*g.in, std::move(its_place));
    in.release(g);
    return 0;
  }
  in.segment_gone(g, h);
  of_.space.drop(std::move(whole));
  return h.bytes;
}

}  // namespace weir::memory
