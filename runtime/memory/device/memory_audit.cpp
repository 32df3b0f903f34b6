// Statistics and reports of one device's memory.
// Threads: as memory_audit.h.
#include "runtime/memory/device/memory_audit.h"

#include <algorithm>

#include "runtime/observe/external_memory.h"

namespace weir::memory {

memory_statistics memory_audit::statistics() const {
  (void)heaps_.reclaim_known();
  return counted();
}

memory_statistics memory_audit::counted() const {
  auto const all = heaps_.heap_counts();
  auto out = of_.counts.read(all, heaps_.cached());
  for (stream_heap const* m : heaps_.all()) {
    base::biased_lock hold(m->lock);
    out.peer_access_bytes += m->peer_bytes;
  }
  return out;
}

void memory_audit::reset_peak() {
  for (stream_heap* m : heaps_.all()) {
    section const hold(*m);
    m->counts.reset_peak();
  }
  of_.counts.reset_peak();
}

void memory_audit::reset_accumulated() { of_.counts.reset_accumulated(heaps_.heap_counts(), heaps_.cached()); }

memory_report memory_audit::report() const {
  memory_report out{};
  out.on = weir::device(of_.device);
  memory_statistics n = statistics();
  of_.runtime.part<observe::external_memory>().add_to(of_.device, n);
  out.exported = static_cast<std::size_t>(n.exported_bytes.current);
  out.capacity = of_.space.info().total_memory;
  out.limit = of_.counts.limit();
  out.driver_reserve = of_.driver_reserve;
  out.allocated = static_cast<std::size_t>(n.allocated_bytes.all.current);
  out.pending = static_cast<std::size_t>(n.pending_bytes.all.current);
  out.reserved = static_cast<std::size_t>(n.reserved_bytes.all.current);
  if (!of_.lost()) {
    if (auto const m = of_.machine.memory(of_.device); m.ok() && m.value.total > m.value.free + out.reserved) {
      out.other_processes = m.value.total - m.value.free - out.reserved;
    }
  }
  for (stream_heap* m : heaps_.all()) {
    base::biased_lock hold(m->lock);
    out.largest_free = std::max(out.largest_free, m->blocks.largest_free());
  }
  return out;
}

std::size_t memory_audit::unreclaimable() const {
  (void)heaps_.reclaim_known();
  std::size_t bytes = 0, at_rest = 0;
  for (stream_heap* m : heaps_.all()) {
    base::biased_lock hold(m->lock);
    std::uint64_t const home = m->home.load()->id();
    handle const* counted = nullptr;
    for (auto const& [at, h] : m->handles) at_rest += h.bytes;
    for (region* r : m->blocks.regions()) {
      for (heap_block const* p = &m->blocks.first_block(*r); p; p = p->after) {
        if (p->is == state::unmapped) continue;
        bool const idle = p->is == state::free && of_.clocks.complete({home, p->freed});
        for (address a = p->at; a < p->end();) {
          handle const* const h = r->page(a);
          a = h ? h->at + h->bytes : a + r->page_bytes;
          if (!h || h == counted || (idle && !of_.open_bytes(*h))) continue;
          counted = h;
          bytes += h->bytes;
        }
      }
    }
  }
  std::size_t const reserved = of_.counts.reserved();
  return bytes + (reserved > at_rest ? reserved - at_rest : 0);
}

}  // namespace weir::memory
