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
  for (stream_heap* m : heaps_.all())
    out.peer_access_bytes += quiet_session(*m).peer_bytes();
  return out;
}

void memory_audit::reset_peak() {
  for (stream_heap* m : heaps_.all())
    session(*m).reset_peak();
  of_.counts.reset_peak();
  heaps_.reset_peaks_of_pools();
}

void memory_audit::reset_accumulated() {
  of_.counts.reset_accumulated(heaps_.heap_counts(), heaps_.cached());
}

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
    quiet_session const in(*m);
    if (!m->is_asleep())
      out.largest_free = std::max(out.largest_free, in.largest_free());
  }
  return out;
}

pool_memory_use memory_audit::use_of(memory_pool const& pool) const {
  pool_memory_use out;
  (void)heaps_.reclaim_known();
  auto const its = heaps_.counts_of(pool);
  out.reserved = its.mapped;
  memory_statistics const n = of_.counts.read(its.counts, its.cached);
  auto const sums = pool.now();
  out.pool = pool.number();
  out.name = pool.name();
  out.limit = sums.limit, out.max_reserved = std::max(sums.most_charged, out.reserved);
  out.blocks = n.allocation.all.current, out.asleep = sums.asleep;
  // Other threads change the counters while they are read: the parts stay within the whole.
  out.allocated = std::min(out.reserved, static_cast<std::size_t>(n.allocated_bytes.all.current));
  out.pending = std::min(out.reserved - out.allocated, static_cast<std::size_t>(n.pending_bytes.all.current));
  out.cached = out.reserved - out.allocated - out.pending;
  return out;
}

std::vector<pool_memory_use> memory_audit::by_pool() const {
  std::vector<pool_memory_use> out;
  for (memory_pool const* p : heaps_.pools())
    out.push_back(use_of(*p));
  return out;
}

void memory_audit::add_pool(memory_report& to, memory_pool const& pool) const {
  if (pool.is != memory_pool::kind::rest)
    to.pool = use_of(pool);
}

std::size_t memory_audit::unreclaimable() const {
  (void)heaps_.reclaim_known();
  std::size_t bytes = 0, at_rest = 0;
  for (stream_heap* m : heaps_.all()) {
    quiet_session const in(*m);
    std::uint64_t const home = m->home().id();
    // What is reserved beyond these is in transit to a block.
    in.each_handle([&](handle const& h) { at_rest += h.asleep ? 0 : h.bytes; });
    handle const* counted = nullptr;
    in.each_block([&](heap_block const& p) {
      if (p.is == state::unmapped)
        return;
      bool const idle = p.is == state::free && !m->rules().pages_stay && of_.clocks.complete({home, p.freed});
      for (address a = p.at; a < p.end();) {
        handle const* const h = p.in->page(a);
        a = h ? h->at + h->bytes : a + p.in->page_bytes;
        // Once, though several blocks may lie in it.
        if (!h || h->asleep || h == counted)
          continue;
        if (idle && !of_.open_bytes(*h))
          continue;
        counted = h;
        bytes += h->bytes;
      }
    });
  }
  std::size_t const reserved = of_.counts.reserved();
  std::size_t const in_transit = reserved > at_rest ? reserved - at_rest : 0;
  return bytes + in_transit;
}

}  // namespace weir::memory
