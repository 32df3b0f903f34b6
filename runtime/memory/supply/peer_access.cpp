// Peer access: granted block by block, or for each handle of a stream as it is mapped.
// Threads: as peer_access.h.
#include "runtime/memory/supply/peer_access.h"

#include <bit>

namespace weir::memory {
namespace {
address end_of(block_ref const& b) {
  return b.in_slab ? b.start + b.in_slab->size : b.block->end();
}
}  // namespace

driver::status peer_access::grant(void const* p, int reader) {
  region* const r = of_.space.find(p);
  if (!r || reader < 0 || reader >= 64)
    return {driver::code::invalid};
  if (reader == of_.device)
    return {};
  if (!of_.space.maps())
    return {driver::code::not_supported};
  stream_heap& m = *r->owner.load();
  std::uint64_t const bit = std::uint64_t{1} << reader;
  base::lock_guard const alone(granting_);
  std::vector<handle> missing;
  {
    quiet_session const in(m);
    block_ref const b = in.at(*r, reinterpret_cast<address>(p));
    if (!b.live)
      return {driver::code::invalid};
    for (address a = b.start, end = end_of(b); a < end;) {
      handle const* const h = r->page(a);
      if (!(h->readers & bit))
        missing.push_back(*h);
      a = h->at + h->bytes;
    }
  }
  if (auto const s = of_.machine.open(reader); !s.ok())
    return s;
  // The block is live: its handles stay.
  for (handle const& h : missing) {
    // One that sleeps is granted when its pool wakes, by what is noted here.
    driver::status s;
    if (!h.asleep)
      s = of_.machine.grant(h.at, h.bytes, reader);
    if (!s.ok())
      return s;
    quiet_session(m).note_readers(h.at, bit);
  }
  return {};
}

bool peer_access::granted(void const* p, int reader) const noexcept {
  region* const r = of_.space.find(p);
  if (!r || reader < 0 || reader >= 64)
    return false;
  if (reader == of_.device)
    return true;
  stream_heap& m = *r->owner.load();
  quiet_session const in(m);
  block_ref const b = in.at(*r, reinterpret_cast<address>(p));
  if (!b.live)
    return false;
  for (address a = b.start, end = end_of(b); a < end;) {
    handle const* const h = r->page(a);
    if (!(h->readers >> reader & 1))
      return false;
    a = h->at + h->bytes;
  }
  return true;
}

std::uint64_t peer_access::living(std::uint64_t devices) const noexcept {
  std::uint64_t out = 0;
  for (; devices; devices &= devices - 1) {
    if (int const d = std::countr_zero(devices); !of_.clocks.lost(d))
      out |= std::uint64_t{1} << d;
  }
  return out;
}

driver::status peer_access::open_handles(stream_heap& m, std::uint64_t readers) {
  std::vector<handle> closed;
  std::vector<address_range> left_behind;  // where a graph's launches use a handle that has moved
  {
    quiet_session const in(m);
    in.each_handle([&](aliased_handle const& h) {
      // It is unusable: not even open to its own device.
      if (!(h.readers & of_.own_bit()))
        return;
      // It is open to all of them.
      if (!(readers & ~h.readers))
        return;
      closed.push_back(h);
      // Elsewhere nothing uses the place that a handle has left.
      if (!m.rules().places_stay)
        return;
      for (alias const* g = h.aliases; g; g = g->next)
        if (g->granted)
          left_behind.push_back({g->at, g->bytes});
    });
  }
  for (address_range const& r : left_behind)
    if (auto const s = of_.machine.grant_all(r.at, r.bytes, readers); !s.ok())
      return s;
  for (handle const& h : closed) {
    // One that sleeps is granted when its pool wakes, by what is noted here.
    driver::status s;
    if (!h.asleep)
      s = of_.machine.grant_all(h.at, h.bytes, readers);
    if (!s.ok())
      return s;
    quiet_session(m).note_readers(h.at, readers);
  }
  return {};
}

// The driver lets those devices reach this one.
driver::status peer_access::open_devices(std::uint64_t readers) {
  for (std::uint64_t left = readers; left; left &= left - 1) {
    if (auto const s = of_.machine.open(std::countr_zero(left)); !s.ok())
      return s;
  }
  return {};
}

driver::status peer_access::open_each_of(std::span<stream_heap* const> heaps, std::uint64_t readers) {
  for (stream_heap* const m : heaps) {
    if (auto const s = open_handles(*m, readers); !s.ok())
      return s;
  }
  return {};
}

// All handles are open before the readers are noted: after a refusal none is. A heap that the stream inherits
// meanwhile has handles, too.
driver::status peer_access::open_heaps_of(clock::stream_clock& home, std::uint64_t readers) {
  std::vector<stream_heap*> heaps;
  auto const list = [&](clock::stream_clock const& of) {
    heaps.clear();
    heaps_.each_of(of, [&](stream_heap& m) { heaps.push_back(&m); });
  };
  // The stream's small blocks may lie in pages that it shares.
  if (auto const* const shared = heaps_.shared_home_if_made()) {
    list(*shared);
    if (auto const s = open_each_of(heaps, readers); !s.ok())
      return s;
  }
  do {
    list(home);
    if (auto const s = open_each_of(heaps, readers); !s.ok())
      return s;
  } while (!heaps_.add_readers(home, readers, heaps));
  return {};
}

// Heaps that come meanwhile are opened, too, before new heaps are open to the readers from the start.
driver::status peer_access::open_all_heaps(std::uint64_t readers) {
  for (std::size_t opened = 0;;) {
    auto const all = heaps_.all();
    if (auto const s = open_each_of(std::span(all).subspan(opened), readers); !s.ok())
      return s;
    opened = all.size();
    // Unless heaps have come meanwhile.
    if (heaps_.add_readers_of_all(readers, opened))
      return {};
  }
}

driver::status peer_access::open_to(clock::stream_clock* home, std::uint64_t readers) {
  readers &= ~of_.own_bit();
  if (!readers)
    return {};
  if (!of_.space.maps())
    return {driver::code::not_supported};
  if (auto const s = open_devices(readers); !s.ok())
    return s;
  // A heap of the stream is where add_readers() notes them.
  if (home)
    (void)heaps_.of(*home);
  base::lock_guard const alone(granting_);
  mapping_lock::exclusive const stay(memory_.changes);
  return home ? open_heaps_of(*home, readers) : open_all_heaps(readers);
}

void peer_access::validate(excluded const& in, std::vector<std::string>& wrong, std::string const& subject) const {
  std::uint64_t const expected = in.heap().readers();
  std::size_t open = 0;
  in.each_handle([&](handle const& h) {
    open += of_.open_bytes(h);
    if ((h.readers & of_.own_bit()) && living(expected & ~h.readers))
      wrong.push_back(subject + ": a handle is not open to every reader of its heap, at " + std::to_string(h.at));
  });
  if (open != in.peer_bytes())
    wrong.push_back(subject + ": bytes open to peers: counted " + std::to_string(in.peer_bytes()) + ", found " +
                    std::to_string(open));
}

}  // namespace weir::memory
