// Releases handles that are wholly free and complete to the driver.
// Threads: as handle_return.h.
#include "runtime/memory/supply/handle_return.h"

#include <span>

namespace weir::memory {

std::size_t handle_return::some(std::size_t want, memory_pool const* only) {
  std::size_t bytes = only ? 0 : memory_.return_orphans();
  for (stream_heap* m : heaps_.all()) {
    if (bytes >= want)
      break;
    if (only && m->pool.get() != only)
      continue;
    bytes += of(*m, want - bytes);
  }
  return bytes;
}

std::size_t handle_return::of(stream_heap& m, std::size_t want, clock::stamp const* freed) {
  std::uint64_t const last = freed ? freed->n : ~std::uint64_t{0};
  mapping_lock::shared const going_back(memory_.changes);
  if (m.pool.get()->pages_stay())
    return 0;
  std::size_t bytes = 0;
  std::vector<released> again;
  {
    section const hold(m);
    again.swap(m.unusable);
  }
  for (released& g : again)
    bytes += one(m, g);
  // empty runs become free first, so that their use is complete, too, when a handle is chosen
  if (of_.deterministic && of_.clocks.collectives_given().empty()) {
    {
      section const hold(m);
      while (slab* const s = m.slots.any_empty())
        m.return_run(*s);
    }
    m.finish();
  }
  for (bool more = true; more && bytes < want;) {
    clock::stamp to_ask;
    std::vector<released> going;
    {
      section const hold(m);
      if (m.pages_stay())
        return bytes;  // a graph has taken it over meanwhile
      while (slab* const s = m.slots.any_empty())
        m.return_run(*s);
      to_ask.stream = m.home.load()->id();
      bool const came_later = m.came_unstamped.stream == to_ask.stream && m.came_unstamped.n > last;
      if (freed && (freed->stream != to_ask.stream || came_later))
        return bytes;
      auto found = m.blocks.reserve_handles(
          want - bytes, of_.deterministic ? arena::first::lowest : arena::first::oldest, [&](std::uint64_t n) {
            return n <= last && of_.clocks.complete({to_ask.stream, n});
          });
      going = std::move(found.all);
      to_ask.n = found.waits_for;
      for (released const& g : going) {
        for (handle const& h : g.handles) {  // a segment: no search may find its region during the release
          if (h.physical == driver::memory_handle::none)
            g.in->set_pages(h, nullptr);
        }
      }
    }
    if (going.empty()) {
      if (!to_ask.n || to_ask.n > last)
        break;
      auto const done = of_.clocks.poll(to_ask);
      if (!done.ok() || !done.value)
        break;
      continue;
    }
    for (released& g : going) {
      std::size_t const gave = one(m, g);
      bytes += gave;
      more &= gave > 0;
    }
  }
  return bytes;
}

std::size_t handle_return::one(stream_heap& m, released& g) {
  if (g.handles.front().physical == driver::memory_handle::none)
    return release_segment(m, g);
  std::size_t gone = 0;  // handles released, moved to the front
  physical_memory::batch back;
  std::size_t bytes = 0;
  for (handle& h : g.handles) {
    if (!mover_.drop_aliases(m.aliased(h), 0))
      continue;  // memory that is mapped anywhere does not go
    driver::status const s = of_.machine.unmap(h.at, h.bytes);
    of_.note_status(s);
    if (!s.ok())
      continue;
    bytes += h.bytes;
    memory_.release(h.physical, h.bytes, back);
    std::swap(h, g.handles[gone++]);
  }
  section const hold(m);
  for (handle const& h : std::span(g.handles).first(gone)) {
    g.in->set_pages(h, nullptr);
    m.handles.erase(h.at);
    m.note_unmapped(h);
  }
  m.log_mapping(bytes - back.orphaned, "memory returned to the driver");
  of_.counts.refund(bytes - back.orphaned);
  if (gone == 0 && !(g.handles.front().readers & of_.own_bit())) {
    try {
      m.unusable.push_back(std::move(g));
    } catch (...) {}  // no host memory: its block stays reserved until the end
    return 0;
  }
  m.blocks.release_done(*g.place);
  return bytes - back.orphaned;
}

// As one(). First all forget the segment's address: another thread may get it as soon as the driver has it.
std::size_t handle_return::release_segment(stream_heap& m, released& g) {
  handle const h = g.handles.front();
  address_space::segment whole;
  decltype(m.handles)::node_type its_place;
  {
    section const hold(m);
    whole = of_.space.set_aside(*g.in);
    its_place = m.handles.extract(h.at);
    m.record_mapping(h, observe::action::unmap);
  }
  driver::status const s = of_.machine.release_segment(of_.device, h.at);
  of_.note_status(s);
  section const hold(m);
  if (!s.ok()) {
    of_.space.put_back(std::move(whole));
    g.in->set_pages(h, &m.handles.insert(std::move(its_place)).position->second);
    m.record_mapping(h, observe::action::map);
    m.blocks.release_done(*g.place);
    return 0;
  }
  of_.counts.handle_gone();
  m.counts.mapped(-static_cast<std::int64_t>(h.bytes));
  m.pool.get()->refund(h.bytes);
  of_.counts.refund(h.bytes);
  m.log_mapping(h.bytes, "memory returned to the driver");
  m.blocks.release_done(*g.place);
  m.blocks.drop_region(*g.in);
  of_.space.drop(std::move(whole));
  return h.bytes;
}

}  // namespace weir::memory
