// The layout of a device's memory, for people: mapped ranges with their live, pending and free blocks.
// Threads: any. Examines everything, under one heap's lock after the other.
#include <algorithm>
#include <map>

#include "runtime/memory/device/memory_audit.h"

namespace weir::memory {
namespace {

using part = mapped_range::part;
using use = mapped_range::use;

void add(mapped_range& to, part const& p) {
  to.bytes += p.bytes;
  if (p.is == use::free && !to.parts.empty() && to.parts.back().is == use::free) {
    to.parts.back().bytes += p.bytes;
  } else {
    to.parts.push_back(p);
  }
}

// waiting: start addresses of deferred frees, ascending.
void add_slots(mapped_range& to, heap_block const& run, std::vector<address> const& waiting) {
  address end = run.at;
  run.in_slab->each_slot(run, [&](slab const& s, std::uint32_t i) {
    if (s.start(i) > end)
      add(to, {end, s.start(i) - end, 0, use::free});
    end = s.start(i) + s.size;
    bool const is_deferred = std::binary_search(waiting.begin(), waiting.end(), s.start(i));
    switch (s.at(i)) {
      case slot::live: add(to, {s.start(i), s.size, s.requested(i), use::live}); break;
      case slot::pending: add(to, {s.start(i), s.size, 0, use::pending}); break;
      default: add(to, {s.start(i), s.size, 0, is_deferred ? use::pending : use::free}); break;
    }
  });
  if (end < run.end())
    add(to, {end, run.end() - end, 0, use::free});
}

// Requires: its heap's caches are shut. waiting: as add_slots
void add_block(mapped_range& to, heap_block const& p, std::vector<address> const& waiting) {
  for (address a = p.at; a < p.end();) {
    handle const* const h = p.in->page(a);
    to.readers &= h ? h->readers : 0;
    a = h ? h->at + h->bytes : p.end();
  }
  switch (p.is) {
    case state::slab: add_slots(to, p, waiting); break;
    case state::live: add(to, {p.at, p.bytes, p.requested, use::live}); break;
    case state::pending: add(to, {p.at, p.bytes, 0, use::pending}); break;
    default: add(to, {p.at, p.bytes, 0, use::free}); break;
  }
  to.slots &= p.is == state::slab || p.is == state::free;
}

void add_to_use(stream_memory_use& to, part const& p) {
  switch (p.is) {
    case use::live: to.allocated += p.bytes; break;
    case use::pending: to.pending += p.bytes; break;
    case use::free:
      to.cached += p.bytes;
      to.largest_free = std::max(to.largest_free, p.bytes);
      break;
  }
}

// Adds the bytes of a heap by the stream they wait for. known: of its stream's heaps in other pools
void add_waits(std::vector<stream_memory_use::waiting>& known, device_context const& of, quiet_session const& in) {
  std::map<std::uint64_t, std::size_t> waits;
  in.each_pending([&](pending_block const& b) { waits[b.stamps.front().stream] += b.bytes; });
  in.each_cache([&](thread_cache const& c) {
    for (deferred_frees const& out : c.outs) {
      if (out.count() == 0)
        continue;
      auto const all = out.stamps();
      auto const is_over = [&](clock::stamp s) { return of.ordered_or_complete(in.heap().home(), s); };
      auto const next = std::ranges::find_if_not(all, is_over);
      clock::stamp const awaited = next == all.end() ? all.front() : *next;
      waits[awaited.stream] += static_cast<std::size_t>(out.held_bytes());
    }
  });
  for (auto const& w : known)
    waits[w.stream] += w.bytes;
  known.clear();
  for (auto const& [stream, bytes] : waits)
    known.push_back({stream, bytes});
}

// The slots of deferred frees, sorted. Requires: the caches are shut
std::vector<address> deferred(quiet_session const& in) {
  std::vector<address> all;
  in.each_cache([&](thread_cache const& c) {
    for (deferred_frees const& out : c.outs) {
      for (slabs::taken const s : out.slots())
        all.push_back(s.from->start(s.index));
    }
  });
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

std::vector<mapped_range> memory_audit::layout() const {
  (void)heaps_.reclaim_known();  // as the counters do
  std::vector<mapped_range> all;
  for (stream_heap* m : heaps_.all()) {
    quiet_session in(*m);
    if (m->is_asleep())
      continue;
    in.shut_caches();
    std::vector<address> const waiting = deferred(in);
    std::uint64_t const stream = m->shown_stream(), pool = m->pool().number();
    in.each_region([&](region const& r) {
      bool in_range = false;
      for (heap_block const* p = r.first; p; p = p->after) {
        if (p->is == state::unmapped || p->is == state::reserved) {
          in_range = false;
          continue;
        }
        // All slots, and open to all others: add_block() takes away what does not hold.
        if (!in_range) {
          all.push_back({.at = p->at,
                         .bytes = 0,
                         .stream = stream,
                         .slots = true,
                         .readers = ~of_.own_bit(),
                         .pool = pool,
                         .parts = {}});
        }
        in_range = true;
        add_block(all.back(), *p, waiting);
      }
    });
  }
  std::sort(all.begin(), all.end(), [](mapped_range const& a, mapped_range const& b) { return a.at < b.at; });
  return all;
}

std::vector<stream_memory_use> memory_audit::by_stream() const {
  std::map<std::uint64_t, stream_memory_use> all;
  for (mapped_range const& range : layout()) {
    stream_memory_use& u = all[range.stream];
    for (part const& p : range.parts)
      add_to_use(u, p);
  }
  for (stream_heap* m : heaps_.all()) {
    quiet_session const in(*m);
    auto const found = all.find(m->shown_stream());
    if (found != all.end())
      add_waits(found->second.waits_for, of_, in);
  }
  std::vector<stream_memory_use> out;
  for (auto& [stream, u] : all) {
    u.stream = stream;
    out.push_back(std::move(u));
  }
  auto const bytes = [](stream_memory_use const& u) { return u.allocated + u.pending + u.cached; };
  std::stable_sort(out.begin(), out.end(), [&](auto const& a, auto const& b) { return bytes(a) > bytes(b); });
  return out;
}

}  // namespace weir::memory
