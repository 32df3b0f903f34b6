// The invariants of one device's memory, each checked and named.
// Threads: as memory_audit.h.
#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/memory/device/memory_audit.h"

namespace weir::memory {

std::vector<std::string> memory_audit::validate() const {
  std::vector<std::string> wrong;
  std::map<memory_pool const*, std::size_t> in_pools;  // bytes mapped
  for (memory_pool const* p : heaps_.pools()) in_pools[p] = 0;
  std::size_t mapped = 0, unusable = 0, free_blocks = 0, live = 0, pending = 0, cached = 0, reserved = 0;
  for (stream_heap* m : heaps_.all()) {
    base::biased_lock hold(m->lock);
    std::string const subject = base::gpu_name(of_.device) + " stream " + std::to_string(m->home.load()->id());
    for (thread_cache* c : m->caches) c->revoke();  // so that nothing moves meanwhile
    std::uint64_t const now = m->home.load()->now().n;
    std::size_t in_caches = 0, marked_cached = 0, waiting = 0;
    for (thread_cache* c : m->caches) {
      for (slabs::taken const s : c->out.slots()) {
        waiting += s.from->size;
        if (s.from->at(s.index) != slot::cached || s.from->owner != m)
          wrong.push_back(subject + ": a deferred free is not in state cached, or belongs to another heap");
        if (c->out.since() > now) wrong.push_back(subject + ": the stamp of a deferred free is ahead of its stream");
      }
      c->each([&](cached_slot s) {
        region const* const in = of_.space.find(reinterpret_cast<void const*>(s.at));
        slab const* const from = in ? in->table.slab_at(s.at) : nullptr;  // null: its run is gone
        in_caches += from ? from->size : 0;
        if (!from || from->at(from->index(s.at)) != slot::cached || from->owner != m)
          wrong.push_back(subject + ": a slot in a thread cache is not in state cached, or belongs to another heap");
        if (from && c->freed(from->size_class, now) > now)
          wrong.push_back(subject + ": the free stamp of a slot in a thread cache is ahead of its stream");
      });
    }
    m->blocks.validate(wrong, subject);
    m->slots.validate(wrong, subject, now);
    mover_.validate(*m, wrong, subject);
    peers_.validate(*m, wrong, subject);
    bool const asleep = m->asleep.get();
    std::size_t here = 0;  // bytes mapped
    for (auto const& [at, h] : m->handles) here += h.asleep ? 0 : h.bytes;
    mapped += here, in_pools[m->pool.get()] += here;
    if (m->pool.get()->is_registered() && here != (m->handles.size() == 1 ? m->pool.get()->now().limit : 0))
      wrong.push_back(subject + ": a registered pool is not one handle of its limit");
    std::size_t const live_before = live, cached_before = cached;
    std::size_t unusable_here = 0;
    for (released const& u : m->unusable) unusable_here += u.handles.front().bytes;
    unusable += unusable_here;
    free_blocks += m->blocks.free_blocks();
    std::size_t held = 0, queued = 0, largest = 0;
    bool whole = false;
    m->pending.each([&](pending_block const& b) {
      queued += b.bytes, largest = b.block ? std::max(largest, b.bytes) : largest;
      if (b.since > now) wrong.push_back(subject + ": the stamp of a pending block is ahead of its stream");
    });
    for (region* r : m->blocks.regions()) {
      for (heap_block const* p = &m->blocks.first_block(*r); p; p = p->after) {
        if (p->is == state::live) live += p->bytes;
        if (p->is == state::pending) held += p->bytes;
        if (p->is == state::free) {
          cached += p->bytes;
          largest = p->at < r->runs ? std::max(largest, p->bytes) : largest;
          whole |= p->bytes >= r->page_bytes && first_whole(*p);
        }
        if (p->is == state::reserved) reserved += p->bytes;
        if (p->is == state::slab) cached += p->bytes;
        if (p->is == state::slab && p->in_slab->run == p) {  // for all its parts
          slab const& s = *p->in_slab;
          std::uint32_t held_by_caches = 0;
          for (std::uint32_t i = 0; i < s.slots; ++i) held_by_caches += s.at(i) == slot::cached;
          marked_cached += std::size_t{held_by_caches} * s.size;
          std::size_t const in_use = std::size_t{s.held() - held_by_caches} * s.size;
          live += in_use;
          held += std::size_t{s.pending} * s.size;
          cached -= in_use + std::size_t{s.pending} * s.size;
        }
      }
    }
    if (asleep) live = live_before, cached = cached_before + here - unusable_here;  // what stayed mapped
    if (m->listed != heaps_.index.listed(m->number))
      wrong.push_back(subject + ": its row in the heap index differs from its own copy");
    if (largest >= heap_index::smallest && !(m->listed & heap_index::at_least(largest)))
      wrong.push_back(subject + ": the heap index has a size below the arena's largest free or pending block");
    if (whole && !(m->listed & heap_index::whole_handle))
      wrong.push_back(subject + ": the heap index misses a free block that may hold a whole handle");
    if (m->pending.empty() == ((m->listed & heap_index::waits) != 0))
      wrong.push_back(subject + ": the heap index is wrong about pending blocks");
    if (held != queued || queued != m->pending.bytes())
      wrong.push_back(subject + ": the bytes of pending blocks differ from those in the queue");
    if (in_caches + waiting != marked_cached)
      wrong.push_back(subject + ": the bytes in state cached differ from those in thread caches and deferred frees");
    pending += held + waiting;
    cached -= waiting;
  }
  std::size_t const orphaned = memory_.orphaned_bytes();
  memory_statistics const n = counted();
  auto same = [&](char const* what, std::int64_t counted, std::size_t found) {
    if (counted != static_cast<std::int64_t>(found)) {
      wrong.push_back(base::gpu_name(of_.device) + ": " + what + ": counted " + std::to_string(counted) + ", found " +
                      std::to_string(found));
    }
  };
  same("allocated bytes", n.allocated_bytes.all.current, live);
  same("free blocks", n.inactive.all.current, free_blocks);
  same("pending bytes", n.pending_bytes.all.current, pending);
  if (reserved == unusable) {  // nothing under way
    cached += unusable;
    same("cached bytes", n.cached_bytes.all.current, cached + orphaned);
    same("reserved bytes", n.reserved_bytes.all.current, mapped + orphaned);
    same("charged bytes", static_cast<std::int64_t>(of_.counts.reserved()), mapped + orphaned);
    for (auto const& [p, bytes] : in_pools) {
      same(("bytes charged to pool " + p->name).c_str(), static_cast<std::int64_t>(p->now().charged), bytes);
      if (p->is_registered())
        same(("limit of registered pool " + p->name).c_str(), static_cast<std::int64_t>(p->now().limit), bytes);
    }
    same("mapped = live + pending + free", static_cast<std::int64_t>(mapped), live + pending + cached);
  }
  for (auto [r, a, p, c] : {std::tuple{n.reserved_bytes.all.current, n.allocated_bytes.all.current,
                                       n.pending_bytes.all.current, n.cached_bytes.all.current},
                            {n.reserved_bytes.small.current, n.allocated_bytes.small.current,
                             n.pending_bytes.small.current, n.cached_bytes.small.current},
                            {n.reserved_bytes.large.current, n.allocated_bytes.large.current,
                             n.pending_bytes.large.current, n.cached_bytes.large.current}}) {
    if (r != a + p + c) wrong.push_back(base::gpu_name(of_.device) + ": reserved != allocated + pending + cached");
  }
  return wrong;
}

}  // namespace weir::memory
