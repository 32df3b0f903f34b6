// The invariants of one device's memory, each checked and named.
// Threads: as memory_audit.h.
#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/memory/device/memory_audit.h"

namespace weir::memory {

namespace {

// One heap: what its lists, blocks and caches hold, in bytes. Each rule that is broken is named.
class heap_check {
 public:
  heap_check(device_context const& of, quiet_session const& in, std::vector<std::string>& wrong)
      : of_(of),
        in_(in),
        heap_(in.heap()),
        subject_(base::gpu_name(of.device) + " stream " + std::to_string(heap_.home().id())),
        now_(heap_.home().now().n),
        wrong_(wrong) {}
  std::size_t mapped = 0, unusable = 0, live = 0, pending = 0, cached = 0, reserved = 0;

  // Requires: the caches are shut
  void walk(handle_mover const& mover, peer_access const& peers, heap_index::rows in_index) {
    caches();
    in_.validate(wrong_, subject_, now_);
    mover.validate(in_, wrong_, subject_);
    peers.validate(in_, wrong_, subject_);
    in_.each_handle([&](handle const& h) { mapped += h.asleep ? 0 : h.bytes; });
    memory_pool const& pool = heap_.pool();
    // Before its handle is made it has none.
    if (pool.rules().one_handle && mapped != (in_.handles() == 1 ? pool.now().limit : 0))
      say("a registered pool is not one handle of its limit");
    if (pool.has_ended() && !heap_.is_asleep())
      say("the heap is in a pool that has ended");
    if (heap_.is_asleep() && !pool.has_asleep() && in_.holds_blocks())
      say("a sleeping pool has a block that it does not count");
    in_.each_unusable([&](handle const& h) { unusable += h.bytes; });
    queue();
    in_.each_block([&](heap_block const& p) { block(p); });
    // The live blocks of a sleeping heap count as freed. What stayed mapped counts as free.
    if (heap_.is_asleep()) {
      live = 0;
      cached = mapped - unusable;
    }
    index(in_index);
    if (pending != queued_ || queued_ != in_.pending_bytes())
      say("the bytes of pending blocks differ from those in the queue");
    if (in_caches_ + waiting_ != marked_cached_)
      say("the bytes in state cached differ from those in thread caches and deferred frees");
    // Deferred frees are in state cached, and count as pending.
    pending += waiting_;
    cached -= waiting_;
  }

 private:
  void say(char const* what) { wrong_.push_back(subject_ + ": " + what); }
  void caches() {
    in_.each_cache([&](thread_cache const& c) {
      for (deferred_frees const& out : c.outs)
        deferred(out);
      c.each([&](cached_slot s) {
        region const* const in = of_.space.find(reinterpret_cast<void const*>(s.at));
        slab const* const from = in ? in->table.slab_at(s.at) : nullptr;  // null: its run is gone
        in_caches_ += from ? from->size : 0;
        if (!from || from->at(from->index(s.at)) != slot::cached || from->owner != &heap_)
          say("a slot in a thread cache is not in state cached, or belongs to another heap");
        if (from && c.freed(from->size_class, now_) > now_)
          say("the free stamp of a slot in a thread cache is ahead of its stream");
      });
    });
  }
  void deferred(deferred_frees const& out) {
    for (slabs::taken const s : out.slots()) {
      waiting_ += s.from->size;
      if (s.from->at(s.index) != slot::cached || s.from->owner != &heap_)
        say("a deferred free is not in state cached, or belongs to another heap");
      if (out.since() > now_)
        say("the stamp of a deferred free is ahead of its stream");
    }
  }
  void queue() {
    in_.each_pending([&](pending_block const& b) {
      queued_ += b.bytes;
      if (b.block)
        largest_ = std::max(largest_, b.bytes);
      if (b.since > now_)
        say("the stamp of a pending block is ahead of its stream");
    });
  }
  void block(heap_block const& p) {
    if (p.is == state::live)
      live += p.bytes;
    if (p.is == state::pending)
      pending += p.bytes;
    // The parts of a slab's run count as cached here. Below, what its slots use moves to live and pending.
    if (p.is == state::free || p.is == state::slab)
      cached += p.bytes;
    if (p.is == state::reserved)
      reserved += p.bytes;  // the caller subtracts what left_behind() counts
    if (p.is == state::free) {
      // The index lists what lies in the part for blocks alone.
      if (p.at < p.in->runs)
        largest_ = std::max(largest_, p.bytes);
      whole_ |= p.bytes >= p.in->page_bytes && first_whole(p);
    }
    // Its slots, once for all parts of its run.
    if (p.is != state::slab || p.in_slab->run != &p)
      return;
    slab const& s = *p.in_slab;
    std::uint32_t held_by_caches = 0;
    for (std::uint32_t i = 0; i < s.slots; ++i)
      held_by_caches += s.at(i) == slot::cached;
    marked_cached_ += std::size_t{held_by_caches} * s.size;
    std::size_t const in_use = std::size_t{s.held() - held_by_caches} * s.size;
    live += in_use;
    pending += std::size_t{s.pending} * s.size;
    cached -= in_use + std::size_t{s.pending} * s.size;
  }
  void index(heap_index::rows in_index) {
    heap_index::rows const its = in_.listed();
    if (its != in_index)
      say("its row in the heap index differs from its own copy");
    if (largest_ >= heap_index::smallest && !(its & heap_index::at_least(largest_)))
      say("the heap index has a size below the arena's largest free or pending block");
    if (whole_ && !(its & heap_index::whole_handle))
      say("the heap index misses a free block that may hold a whole handle");
    if (in_.has_pending() != ((its & heap_index::waits) != 0))
      say("the heap index is wrong about pending blocks");
  }

  device_context const& of_;
  quiet_session const& in_;
  stream_heap const& heap_;
  std::string const subject_;
  std::uint64_t const now_;  // of the home
  std::vector<std::string>& wrong_;
  std::size_t in_caches_ = 0, waiting_ = 0, marked_cached_ = 0, queued_ = 0;  // waiting_: deferred frees
  std::size_t largest_ = 0;                                                   // of a free or pending block
  bool whole_ = false;                                                        // a free block may hold a whole handle
};

}  // namespace

std::vector<std::string> memory_audit::validate() const {
  std::vector<std::string> wrong;
  std::map<memory_pool const*, std::size_t> in_pools;  // bytes mapped
  for (memory_pool const* p : heaps_.pools())
    in_pools[p] = 0;
  std::size_t mapped = 0, unusable = 0, free_blocks = 0, live = 0, pending = 0, cached = 0, reserved = 0;
  for (stream_heap* m : heaps_.all()) {
    quiet_session in(*m);
    in.shut_caches();
    heap_check its(of_, in, wrong);
    its.walk(mover_, peers_, heaps_.index.listed(m->number()));
    mapped += its.mapped, in_pools[&m->pool()] += its.mapped;
    unusable += its.unusable, reserved += its.reserved - in.left_behind(), free_blocks += in.free_blocks();
    live += its.live, pending += its.pending, cached += its.cached;
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
  // Nothing is under way: only unusable handles lie in reserved blocks.
  if (reserved == unusable) {
    cached += unusable;
    same("cached bytes", n.cached_bytes.all.current, cached + orphaned);
    same("reserved bytes", n.reserved_bytes.all.current, mapped + orphaned);
    same("charged bytes", static_cast<std::int64_t>(of_.counts.reserved()), mapped + orphaned);
    for (auto const& [p, bytes] : in_pools) {
      same(("bytes charged to pool " + p->name()).c_str(), static_cast<std::int64_t>(p->now().charged), bytes);
      if (p->is_registered())
        same(("limit of registered pool " + p->name()).c_str(), static_cast<std::int64_t>(p->now().limit), bytes);
    }
    same("mapped = live + pending + free", static_cast<std::int64_t>(mapped), live + pending + cached);
  }
  for (auto [r, a, p, c] : {std::tuple{n.reserved_bytes.all.current, n.allocated_bytes.all.current,
                                       n.pending_bytes.all.current, n.cached_bytes.all.current},
                            {n.reserved_bytes.small.current, n.allocated_bytes.small.current,
                             n.pending_bytes.small.current, n.cached_bytes.small.current},
                            {n.reserved_bytes.large.current, n.allocated_bytes.large.current,
                             n.pending_bytes.large.current, n.cached_bytes.large.current}}) {
    if (r != a + p + c)
      wrong.push_back(base::gpu_name(of_.device) + ": reserved != allocated + pending + cached");
  }
  return wrong;
}

}  // namespace weir::memory
