// All devices' allocators of one runtime, who owns an address, the callbacks,
// and what is checked of an allocator.
// Threads: any.
#include <algorithm>
#include <cstdio>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_allocator.h"
#include "runtime/observe/external_memory.h"

namespace weir::memory {

std::uint64_t callbacks::add(ladder_callback run, void* state, int order) {
  base::lock_guard hold(lock_);
  auto const at = std::find_if(all_.begin(), all_.end(), [&](entry const& e) { return e.order > order; });
  all_.insert(at, {next_, order, run, state});
  return next_++;
}

void callbacks::remove(std::uint64_t id) noexcept {
  std::uint64_t const me = base::this_thread_id();
  base::unique_lock hold(lock_);
  if (std::erase_if(all_, [&](entry const& e) { return e.id == id; }) == 0) return;
  // Not for other callbacks: one of them may be removing itself, or wait for this very thread.
  done_.wait(hold, [&] {
    return std::none_of(running_.begin(), running_.end(),
                        [&](caller const& c) { return c.in == id && c.thread != me; });
  });
}

bool callbacks::call(memory_report const& r) {
  std::uint64_t const me = base::this_thread_id();
  std::vector<entry> now;
  {
    base::lock_guard hold(lock_);
    if (all_.empty() || std::any_of(running_.begin(), running_.end(), [&](caller const& c) { return c.thread == me; }))
      return false;
    now = all_;
    running_.push_back({me, 0});
  }
  struct leave {
    callbacks& in;
    std::uint64_t me;
    ~leave() {
      base::lock_guard hold(in.lock_);
      std::erase_if(in.running_, [&](caller const& c) { return c.thread == me; });
      in.done_.notify_all();
    }
  } const on_exit{*this, me};
  bool freed = false;
  for (entry const& e : now) {
    {
      base::lock_guard hold(lock_);  // removed by one that ran before it?
      bool const stands = std::any_of(all_.begin(), all_.end(), [&](entry const& a) { return a.id == e.id; });
      std::find_if(running_.begin(), running_.end(), [&](caller const& c) { return c.thread == me; })->in =
          stands ? e.id : 0;
      done_.notify_all();
      if (!stands) continue;
    }
    freed |= e.run(e.state, r);
  }
  return freed;
}

struct device_memory::state {
  explicit state(weir::runtime::impl& r) : runtime(r) {}
  weir::runtime::impl& runtime;
  memory::callbacks callbacks;
  base::mutex making;
  std::unique_ptr<base::atomic<device_allocator*>[]> at;
  std::vector<std::unique_ptr<device_allocator>> made;  // under making
};

namespace {
base::guarded<std::vector<device_memory*>>& alive() {
  static auto* const all = new base::guarded<std::vector<device_memory*>>;  // outlives every runtime
  return *all;
}
}  // namespace

device_memory::device_memory(weir::runtime::impl& r) : state_(new state(r)) {
  (void)r.part<clock::clocks>();  // torn down after this one
  state_->at.reset(new base::atomic<device_allocator*>[static_cast<std::size_t>(r.device_count())]);
  alive().lock()->push_back(this);
}
device_memory::~device_memory() { std::erase(*alive().lock(), this); }

bool device_memory::is_alive(device_memory const* m) noexcept {
  auto const all = alive().lock();
  return std::find(all->begin(), all->end(), m) != all->end();
}

allocator* device_memory::owner_in_process(void const* p) noexcept {
  // no lock that all threads share
  if (region const* const r = mapped_spaces::find(reinterpret_cast<address>(p))) return &r->owner.load()->in;
  auto const all = alive().lock();
  for (device_memory* m : *all) {
    if (allocator* const a = m->owner(p)) return a;
  }
  return nullptr;
}

allocator& device_memory::on(int device, here const& at) {
  if (allocator* const a = if_made(device)) return *a;
  state_->runtime.open(device, "allocate", at);
  base::lock_guard hold(state_->making);
  auto& slot = state_->at[static_cast<std::size_t>(device)];
  if (device_allocator* const a = slot.load()) return *a;
  state_->made.push_back(std::make_unique<device_allocator>(state_->runtime, device, state_->callbacks, at));
  slot.store(state_->made.back().get());
  return *state_->made.back();
}

allocator* device_memory::if_made(int device) noexcept {
  if (device < 0 || device >= state_->runtime.device_count()) return nullptr;
  return state_->at[static_cast<std::size_t>(device)].load(base::memory_order_acquire);
}

allocator* device_memory::owner(void const* p) noexcept {
  for (int d = 0; d < state_->runtime.device_count(); ++d) {
    device_allocator* const a = state_->at[static_cast<std::size_t>(d)].load(base::memory_order_acquire);
    if (a && a->addresses().find(p)) return a;
  }
  return nullptr;
}

std::uint64_t device_memory::add_callback(ladder_callback c, void* state, int order) {
  return state_->callbacks.add(c, state, order);
}
void device_memory::remove_callback(std::uint64_t id) noexcept { state_->callbacks.remove(id); }

driver::status device_allocator::grant(void const* p, int reader) {
  region* const r = space_.find(p);
  if (!r || reader < 0 || reader >= 64) return {driver::code::invalid};
  if (reader == device_) return {};
  if (!space_.maps()) return {driver::code::not_supported};
  stream_memory& m = *r->owner.load();
  std::uint64_t const bit = std::uint64_t{1} << reader;
  std::vector<handle> missing;
  base::lock_guard const alone(granting_);
  {
    base::owned_lock hold(m.lock);
    located const b = locate(*r, reinterpret_cast<address>(p));
    if (!b.live) return {driver::code::invalid};
    for (address a = b.start, end = b.cut ? b.start + b.cut->size : b.whole->end(); a < end;) {
      handle const* const h = r->page(a);
      if (!(h->readers & bit)) missing.push_back(*h);
      a = h->at + h->bytes;
    }
  }
  if (auto const s = machine_.open(reader); !s.ok()) return s;
  for (handle const& h : missing) {  // the block is live: its handles stay
    driver::status const s = machine_.grant(h.at, h.bytes, reader);
    if (!s.ok()) return s;
    base::owned_lock hold(m.lock);
    note_readers(m, m.handles[h.at], bit);
  }
  return {};
}

bool device_allocator::granted(void const* p, int reader) const noexcept {
  region* const r = space_.find(p);
  if (!r || reader < 0 || reader >= 64) return false;
  if (reader == device_) return true;
  stream_memory& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  located const b = locate(*r, reinterpret_cast<address>(p));
  if (!b.live) return false;
  for (address a = b.start, end = b.cut ? b.start + b.cut->size : b.whole->end(); a < end;) {
    handle const* const h = r->page(a);
    if (!(h->readers >> reader & 1)) return false;
    a = h->at + h->bytes;
  }
  return true;
}

memory_statistics device_allocator::statistics() const {
  (void)settle_what_is_known();
  return counted();
}

// What is known to be complete is nobody's any more, although it waits until somebody looks.
std::size_t device_allocator::settle_what_is_known() const {
  if (deterministic_) return 0;
  auto& books = const_cast<device_allocator&>(*this);  // they say the same as before, and sooner
  std::size_t bytes = 0;
  streams_.some(lenders::waits, 0, [&](stream_memory& m) {
    if (m.counts.bytes_pending() == 0) return false;
    section const hold(m);
    bytes += books.settle(m);
    return false;
  });
  return bytes;
}

memory_statistics device_allocator::counted() const {
  auto const all = tallies();
  auto out = counts_.read(all, lent());
  for (stream_memory const* m : memories()) {
    base::owned_lock hold(m->lock);
    out.peer_visible_bytes += m->open_bytes;
  }
  return out;
}

observe::lent_slots device_allocator::lent() const {
  observe::lent_slots all;
  streams_.each([&](stream_memory const& m) {
    base::owned_lock const hold(m.lock);
    all += m.lent_before;
    for (thread_cache const* c : m.caches) all += c->counted();
  });
  return all;
}

std::vector<observe::tally const*> device_allocator::tallies() const {
  std::vector<observe::tally const*> all;
  for (stream_memory const* m : memories()) all.push_back(&m->counts);
  return all;
}

void device_allocator::reset_peak() {
  for (stream_memory* m : memories()) {
    section const hold(*m);
    m->counts.reset_peak();
  }
  counts_.reset_peak();
}

void device_allocator::reset_accumulated() { counts_.reset_accumulated(tallies(), lent()); }

memory_report device_allocator::report() const {
  memory_report out{};
  out.on = weir::device(device_);
  memory_statistics n = statistics();
  runtime_.part<observe::memory_beside>().add_to(device_, n);
  out.exported = static_cast<std::size_t>(n.exported_bytes.current);
  out.capacity = space_.info().total_memory;
  out.limit = counts_.limit();
  out.allocated = static_cast<std::size_t>(n.allocated_bytes.all.current);
  out.pending = static_cast<std::size_t>(n.pending_bytes.all.current);
  out.reserved = static_cast<std::size_t>(n.reserved_bytes.all.current);
  if (!lost()) {
    if (auto const m = machine_.memory(device_); m.ok() && m.value.total > m.value.free + out.reserved) {
      out.other_processes = m.value.total - m.value.free - out.reserved;
    }
  }
  for (stream_memory* m : memories()) {
    base::owned_lock hold(m->lock);
    out.largest_hole = std::max(out.largest_hole, m->pieces.largest_free());
  }
  return out;
}

std::vector<std::string> device_allocator::validate() const {
  std::vector<std::string> wrong;
  std::size_t mapped = 0, unusable = 0, free_pieces = 0, live = 0, pending = 0, cached = 0, reserved = 0;
  for (stream_memory* m : memories()) {
    base::owned_lock hold(m->lock);
    std::string const who = "gpu:" + std::to_string(device_) + " stream " + std::to_string(m->home.load()->id());
    for (thread_cache* c : m->caches) c->shut();  // nothing moves while it is looked at
    std::uint64_t const now = m->home.load()->now().n;
    std::size_t in_caches = 0, marked_cached = 0, waiting = 0;
    for (thread_cache* c : m->caches) {
      for (slabs::taken const s : c->out.slots()) {
        waiting += s.from->size;
        if (s.from->at(s.index) != slot::cached || s.from->owner != m)
          wrong.push_back(who + ": a slot in an outbox is cached, and of its memory");
        if (c->out.since() > now)
          wrong.push_back(who + ": no slot was put into an outbox at a number that its stream has not reached");
      }
      c->each([&](cached_slot s) {
        region const* const in = space_.find(reinterpret_cast<void const*>(s.at));
        slab const* const from = in ? in->slab_at(s.at) : nullptr;  // none: its run has gone
        in_caches += from ? from->size : 0;
        if (!from || from->at(from->index(s.at)) != slot::cached || from->owner != m)
          wrong.push_back(who + ": a slot in a cache is cached, and of its memory");
        if (from && c->freed(from->size_class, now) > now)
          wrong.push_back(who + ": no slot in a cache came free at a number that its stream has not reached");
      });
    }
    m->pieces.validate(wrong, who);
    m->small.validate(wrong, who, now);
    validate_ghosts(*m, wrong, who);
    validate_readers(*m, wrong, who);
    for (auto const& [at, h] : m->handles) mapped += h.bytes;
    for (released const& u : m->unusable) unusable += u.handles.front().bytes;
    free_pieces += m->pieces.free_pieces();
    std::size_t held = 0, queued = 0, largest = 0;
    bool whole = false;
    m->pending.each([&](held_block const& b) {
      queued += b.bytes, largest = b.whole ? std::max(largest, b.bytes) : largest;
      if (b.since > now) wrong.push_back(who + ": what waits was given back at a number that its stream has reached");
    });
    for (region* r : m->pieces.regions()) {
      for (piece const* p = &m->pieces.first_piece(*r); p; p = p->after) {
        if (p->is == state::live) live += p->bytes;
        if (p->is == state::pending) held += p->bytes;
        if (p->is == state::free) {
          cached += p->bytes;
          largest = p->at < r->runs ? std::max(largest, p->bytes) : largest;
          whole |= p->bytes >= r->page_bytes && first_whole(*p);
        }
        if (p->is == state::reserved) reserved += p->bytes;
        if (p->is == state::slab) cached += p->bytes;
        if (p->is == state::slab && p->cut->run == p) {  // of all its parts
          slab const& s = *p->cut;
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
    if (m->listed != streams_.listed(m->number)) wrong.push_back(who + ": what it is listed as is what its lists say");
    if (largest >= lenders::smallest && !(m->listed & lenders::at_least(largest)))
      wrong.push_back(who +
                      ": listed by the size of the largest free piece or waiting block of its arena, or a larger one");
    if (whole && !(m->listed & lenders::whole))
      wrong.push_back(who + ": listed as whole if a free piece may hold a whole handle");
    if (m->pending.empty() == ((m->listed & lenders::waits) != 0))
      wrong.push_back(who + ": listed as one that waits exactly if something waits in it");
    if (held != queued || queued != m->pending.bytes())
      wrong.push_back(who + ": what is pending waits in a queue, and nothing else does");
    if (in_caches + waiting != marked_cached)
      wrong.push_back(who + ": a slot is in at most one cache or outbox, and its state is cached exactly then");
    pending += held + waiting;
    cached -= waiting;
  }
  std::size_t orphaned = 0;
  {
    auto const all = orphans_.lock();
    for (handle const& h : *all) orphaned += h.bytes;
  }
  memory_statistics const n = counted();
  auto same = [&](char const* what, std::int64_t counted, std::size_t found) {
    if (counted != static_cast<std::int64_t>(found)) {
      wrong.push_back("gpu:" + std::to_string(device_) + ": " + what + ": counted " + std::to_string(counted) +
                      ", found " + std::to_string(found));
    }
  };
  same("allocated bytes", n.allocated_bytes.all.current, live);
  same("free pieces", n.inactive.all.current, free_pieces);
  same("pending bytes", n.pending_bytes.all.current, pending);
  if (reserved == unusable) {  // nothing under way
    cached += unusable;
    same("cached bytes", n.cached_bytes.all.current, cached + orphaned);
    same("reserved bytes", n.reserved_bytes.all.current, mapped + orphaned);
    same("charged bytes", static_cast<std::int64_t>(counts_.reserved()), mapped + orphaned);
    same("mapped = live + pending + free", static_cast<std::int64_t>(mapped), live + pending + cached);
  }
  for (auto [r, a, p, c] : {std::tuple{n.reserved_bytes.all.current, n.allocated_bytes.all.current,
                                       n.pending_bytes.all.current, n.cached_bytes.all.current},
                            {n.reserved_bytes.small.current, n.allocated_bytes.small.current,
                             n.pending_bytes.small.current, n.cached_bytes.small.current},
                            {n.reserved_bytes.large.current, n.allocated_bytes.large.current,
                             n.pending_bytes.large.current, n.cached_bytes.large.current}}) {
    if (r != a + p + c) wrong.push_back("gpu:" + std::to_string(device_) + ": reserved = allocated + pending + cached");
  }
  return wrong;
}

std::size_t device_allocator::covered() const {
  (void)settle_what_is_known();
  std::size_t bytes = 0, at_rest = 0;
  for (stream_memory* m : memories()) {
    base::owned_lock hold(m->lock);
    std::uint64_t const home = m->home.load()->id();
    handle const* counted = nullptr;
    for (auto const& [at, h] : m->handles) at_rest += h.bytes;
    for (region* r : m->pieces.regions()) {
      for (piece const* p = &m->pieces.first_piece(*r); p; p = p->after) {
        if (p->is == state::gap) continue;
        bool const idle = p->is == state::free && clocks_.complete({home, p->freed});
        for (address a = p->at; a < p->end();) {
          handle const* const h = r->page(a);
          a = h ? h->at + h->bytes : a + r->page_bytes;
          if (!h || h == counted || (idle && !open_bytes(*h))) continue;
          counted = h;
          bytes += h->bytes;
        }
      }
    }
  }
  std::size_t const reserved = counts_.reserved();
  return bytes + (reserved > at_rest ? reserved - at_rest : 0);
}

device_allocator::~device_allocator() {
  if (space_.maps()) mapped_spaces::leave(space_.base());
  if (!process_was_forked()) {
    for (auto const& m : memories_) thread_caches::close(*m);
  }
  bool const reachable = !lost() && !process_is_ending() && !process_was_forked();
  try {
    memory_statistics const n = counted();
    if (n.allocation.all.current) {
      std::fprintf(stderr,
                   "weir: gpu:%d: %lld block%s (%lld B) still held when their runtime ended; their memory is left to "
                   "their owners\n",
                   device_, static_cast<long long>(n.allocation.all.current), n.allocation.all.current == 1 ? "" : "s",
                   static_cast<long long>(n.allocated_bytes.all.current));
    }
  } catch (...) {}  // no memory to count with
  if (!reachable) {
    space_.abandon();
    return;
  }
  try {
    if (auto const idle = machine_.synchronize_device(device_); !idle.ok() && idle.what != driver::code::lost) {
      space_.abandon();  // nobody knows what still runs: pages that it uses must not go
      return;
    }
    for (auto const ghosts = ghosts_.take_all(); auto const& [at, g] : ghosts) (void)machine_.unmap(at, g.bytes);
    for (auto const& m : memories_) {
      bool still_used = false;  // by streams of other devices, which that did not wait for
      m->pending.each([&](held_block const& b) {
        for (clock::stamp const s : b.stamps) {
          clock::timeline const* const by = clock::find(s.stream);
          if (!by || by->device() == device_ || clocks_.complete(s)) continue;
          driver::status const done = clocks_.synchronize_device(by->device());
          still_used |= !done.ok() && done.what != driver::code::lost;
        }
      });
      while (slab* const s = m->small.any_empty()) return_run(*m, *s);
      for (region* const r : m->pieces.regions()) {  // what is held keeps its pages
        for (piece const* p = &m->pieces.first_piece(*r); p; p = p->after) {
          bool const held = p->is == state::live || (p->is == state::slab && p->cut->held());
          bool const used = still_used && (p->is == state::pending || (p->is == state::slab && p->cut->pending));
          if (!held && !used) continue;
          for (address a = p->at; a < p->end();) {
            handle* const h = r->page(a);
            a = h->at + h->bytes;
            h->kept = true;
          }
        }
      }
      for (auto const& [at, h] : m->handles) {
        if (h.kept) {
          space_.abandon();
        } else if (h.physical == driver::memory_handle::none) {
          (void)machine_.release_segment(device_, at);
        } else if (machine_.unmap(at, h.bytes).ok()) {
          (void)machine_.release(h.physical);
        }
      }
    }
    return_orphans();
  } catch (...) {  // out of host memory: what is left goes with the process
    space_.abandon();
  }
}

}  // namespace weir::memory
