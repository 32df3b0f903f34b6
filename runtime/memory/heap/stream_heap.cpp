// One stream's heap: blocks allocated and freed, pending blocks, handles, and the row in the index.
// Threads: as stream_heap.h.
#include "runtime/memory/heap/stream_heap.h"

#include <algorithm>

#include "runtime/core/log.h"

namespace weir::memory {
namespace {

stream_heap::range use_slot(slab& s, clock::stream_clock* home, address a,
                            clock::stream_clock& user) {  // Throws: bad_alloc
  std::uint32_t const i = s.index(a);
  if (i >= s.slots || s.at(i) != slot::live)
    return {};
  slab::note* const n = s.note_of(i);
  std::uint32_t const unused = n && n->unused ? n->unused : slab::unused_of(s.byte(i), s.byte(i).get(), s.size);
  if (n && n->home)
    home = n->home;
  if (&user != home)
    s.record_use(i, user);
  return {reinterpret_cast<void*>(s.start(i)), s.size - unused};  // NOLINT(performance-no-int-to-ptr)
}
}  // namespace

void* stream_heap::take(alloc_request const& r) {
  if (asleep.get()) [[unlikely]]
    return nullptr;
  if (r.size_class < 0) {
    heap_block* const p = blocks.take(r.rounded, r.alignment);
    return p ? hand_out(*p, r, nullptr) : nullptr;
  }
  slabs::taken const got = free_slot(r);
  return got.from ? hand_out(got, r) : nullptr;
}

slabs::taken stream_heap::free_slot(alloc_request const& r) {
  if (auto const got = slots.take(r.size_class, r.bytes); got.from)
    return got;
  std::size_t const next_bytes = slots.next_run_bytes(r.size_class), bytes = slots.usual_next_run_bytes(r.size_class),
                    alignment = slabs::run_alignment(r.size_class);
  heap_block* run = blocks.take_run(next_bytes, alignment);
  if (!run && bytes < next_bytes)
    run = blocks.take_run(bytes, alignment);
  if (!run && slots.has_shed())
    run = blocks.take_short_run(bytes, alignment, size_classes::bytes(r.size_class));
  if (!run)
    return {};
  cut_run(*run, r.size_class);
  return slots.take(r.size_class, r.bytes);
}

// A stream's own last block comes first: its work is ordered, because the stream is the same.
void* stream_heap::take_for(clock::stream_clock& user, alloc_request const& r) {
  if (asleep.get())
    return nullptr;
  slab::spare_note spare = slab::make_note();
  slabs::taken got = slot_freed_by(user, r);
  if (!got.from)
    got = free_slot(r);
  if (!got.from)
    return nullptr;
  got.from->set_home(got.index, user, std::move(spare));
  return hand_out(got, r);
}

slabs::taken stream_heap::slot_freed_by(clock::stream_clock& user, alloc_request const& r) noexcept {
  pending_block b;
  auto const suits = [&](pending_block const& p) {
    return p.in_slab && p.in_slab->size_class == r.size_class && p.stamps.size() == 1 && p.more.empty() &&
           slab::fits_byte(p.in_slab->size, r.bytes);
  };
  if (pending.empty() || !pending.take(user.id(), suits, b))
    return {};
  note_waiting();
  counts.pending_no_more(observe::size_pool::small, b.bytes);
  of.record_pending(observe::action::free_completed, b.in_slab->start(b.index), b.bytes, 0);
  slots.take_back(*b.in_slab, b.index, r.bytes);
  return {b.in_slab, b.index};
}

void stream_heap::give_to(clock::stream_clock& user, void* p, slab::spare_note spare) noexcept {
  block_ref const b = block_ref::find(*of.space.find(p), reinterpret_cast<address>(p));
  b.in_slab->set_home(b.index, user, std::move(spare));
}

void* stream_heap::take_or_shed(alloc_request const& r) {
  if (void* const p = take(r))
    return p;
  return r.size_class >= 0 && slots.worth_shedding(of.space.page_bytes()) && return_idle_cells() ? take(r) : nullptr;
}

void* stream_heap::take_anywhere(alloc_request const& r) {
  if (asleep.get())
    return nullptr;
  if (r.size_class < 0) {
    heap_block* const p = blocks.take_anywhere(r.rounded, r.alignment);
    return p ? hand_out(*p, r, nullptr) : nullptr;
  }
  heap_block* const run = blocks.take_run_anywhere(slots.usual_next_run_bytes(r.size_class), granule);
  if (!run)
    return nullptr;
  cut_run(*run, r.size_class);
  return hand_out(slots.take(r.size_class, r.bytes), r);
}

void* stream_heap::hand_out(heap_block& p, alloc_request const& r, clock::stream_clock* other_home) {
  p.home = other_home ? other_home : home.load();
  p.requested = r.bytes;
  counts.allocated(observe::size_pool::large, p.bytes, r.bytes);
  if (of.announced) [[unlikely]]
    of.machine.block_taken(p.at, r.bytes);
  return reinterpret_cast<void*>(p.at);
}

void* stream_heap::hand_out(slabs::taken got, alloc_request const& r) {
  counts.allocated(observe::size_pool::small, got.from->size, r.bytes);
  if (of.announced) [[unlikely]]
    of.machine.block_taken(got.from->start(got.index), r.bytes);
  return reinterpret_cast<void*>(got.from->start(got.index));
}

void stream_heap::cut_run(heap_block& run, int size_class) {
  std::size_t const bytes = run.bytes;
  try {
    slots.add(run, size_class, this, bucket);
  } catch (...) {
    blocks.release_done(run);
    throw;
  }
  counts.run_cut(static_cast<std::int64_t>(bytes));
  of.counts.run_cut(bytes);
}

void stream_heap::return_run(slab& s) noexcept {
  slots.remove(s, [&](heap_block& part) {
    run_gone(part.bytes);
    blocks.give(part, s.freed);
  });
}

bool stream_heap::holds_blocks() const {
  bool live = !pending.empty();
  blocks.each_block([&](heap_block const& p) {
    live |= p.is == state::live;
    if (p.is == state::slab)
      p.in_slab->each_live_slot(p, [&](slab const&, std::uint32_t) { live = true; });
  });
  return live;
}

std::size_t stream_heap::count_asleep(bool yes) noexcept {
  std::size_t all = 0;
  auto const count = [&](observe::size_pool p, std::size_t bytes, std::size_t requested) {
    yes ? counts.freed(p, bytes, requested) : counts.allocated(p, bytes, requested);
    ++all;
  };
  blocks.each_block([&](heap_block const& p) {
    if (p.is == state::live)
      count(observe::size_pool::large, p.bytes, p.requested);
    if (p.is != state::slab)
      return;
    if (!yes)
      counts.run_cut(static_cast<std::int64_t>(p.bytes)), of.counts.run_cut(p.bytes);
    p.in_slab->each_live_slot(
        p, [&](slab const& s, std::uint32_t i) { count(observe::size_pool::small, s.size, s.requested(i)); });
    if (yes)
      run_gone(p.bytes);
  });
  return all;
}

void stream_heap::run_gone(std::size_t bytes) noexcept {
  if (asleep.get())
    return;  // it was counted when its pool fell asleep
  counts.run_cut(-static_cast<std::int64_t>(bytes));
  of.counts.run_returned(bytes);
}

// Returns unused cells to the arena, for other sizes.
std::size_t stream_heap::return_idle_cells() {
  (void)revoke_and_empty();
  std::size_t const before = slots.in_runs();
  slots.shed(
      [&](heap_block& part, address from, std::size_t bytes) {
        heap_block* const rest = blocks.give_part(part, from, bytes, part.in_slab->freed);
        run_gone(bytes);
        return rest;
      },
      [&](slab& s) { return_run(s); });
  return before - slots.in_runs();
}

void stream_heap::reclaimed(pending_block const& b, std::uint64_t freed) noexcept {
  if (!freed)
    came_unstamped = home.load()->now();
  if (b.block) {
    counts.pending_no_more(observe::size_pool::large, b.bytes);
    of.record_pending(observe::action::free_completed, b.block->at, b.bytes, 0);
    return blocks.give(*b.block, freed);
  }
  counts.pending_no_more(observe::size_pool::small, b.bytes, b.slots());
  b.each_slot([&](slabs::taken s) {
    of.record_pending(observe::action::free_completed, s.from->start(s.index), s.from->size, 0);
    if (slots.give(*s.from, s.index, freed))
      return_run(*s.from);
  });
}

void stream_heap::note_waiting() noexcept {
  std::int64_t bytes = 0;
  for (thread_cache const* c : caches)
    bytes += c->out.unpublished_here().bytes;
  if (bytes)
    counts.also_waiting(bytes);
}

std::size_t stream_heap::reclaim() {
  clock::stream_clock& here = *home.load();
  std::size_t bytes = 0;
  pending.reclaim(
      [&](clock::stamp s, pending_block& b) {
        bool const yes = of.ordered_or_complete(here, s, b.since);
        of.count_search(!yes);  // a block that is reclaimed is the search's result
        return yes;
      },
      [&](pending_block const& b) {
        if (bytes == 0)
          note_waiting();
        bytes += b.bytes;
        reclaimed(b, b.since);
      });
  return bytes;
}

void stream_heap::finish() {
  std::vector<clock::stamp> stamps;
  {
    section const hold(*this);
    stamps = pending.newest();
    stamps.push_back(home.load()->now());
  }
  for (clock::stamp const s : stamps) {
    if (!of.clocks.complete(s))
      (void)of.clocks.synchronize(s);
  }
}

stream_heap::range stream_heap::use(region& r, address a, clock::stream_clock& user) noexcept try {
  if (asleep.get()) [[unlikely]]
    return {};
  if (slab* const s = r.table.slab_at(a))
    return use_slot(*s, home.load(base::memory_order_relaxed), a, user);
  heap_block* const p = r.table.covering(a);
  if (!p || p->is != state::live)
    return {};
  if (&user != p->home && !p->users.has(user))
    p->users.add(user);
  return {reinterpret_cast<void*>(p->at), p->requested};  // NOLINT(performance-no-int-to-ptr)
} catch (...) {
  return {};
}

aliased_handle const& stream_heap::aliased(handle const& h) {
  section const hold(*this);
  return handles.at(h.at);
}

void stream_heap::note_mapped(handle const& h) noexcept {
  peer_bytes += of.open_bytes(h);
  of.counts.handle_mapped();
  counts.mapped(static_cast<std::int64_t>(h.bytes));
  record_mapping(h, observe::action::map);
}

void stream_heap::note_unmapped(handle const& h) noexcept {
  peer_bytes -= of.open_bytes(h);
  of.counts.handle_gone();
  counts.mapped(-static_cast<std::int64_t>(h.bytes));
  pool.get()->refund(h.bytes);
  record_mapping(h, observe::action::unmap);
}

void stream_heap::note_readers(handle& h, std::uint64_t more) noexcept {
  peer_bytes -= of.open_bytes(h);
  h.readers |= more;
  peer_bytes += of.open_bytes(h);
}

void stream_heap::free_left_behind() noexcept {
  if (!std::exchange(left_behind, 0))
    return;
  // an unusable handle is mapped where its block is
  auto const is_left = [](heap_block const& p) { return p.is == state::reserved && !p.in->page(p.at); };
  for (region const* r : blocks.regions()) {
    for (heap_block *p = r->first, *next = nullptr; p; p = next) {
      next = p->after;
      while (next && next->is != state::reserved)
        next = next->after;  // its neighbours may be merged with it
      if (is_left(*p))
        blocks.release_done(*p);
    }
  }
}

void stream_heap::record_mapping(handle const& h, observe::action what) const noexcept {
  observe::note(what, reinterpret_cast<void const*>(h.at), h.bytes, shown_stream(), of.runtime.id(), of.device,
                {nullptr, nullptr, 0});
}

void stream_heap::log_mapping(std::size_t bytes, char const* what) const noexcept {
  if (bytes && logs(of.runtime, log_level::debug)) [[unlikely]]
    log(log_level::debug, {of.device, shown_stream(), bytes}, what);
}

heap_index::rows stream_heap::to_be_listed() const noexcept {
  heap_index::rows const waits = pending.empty() ? 0 : heap_index::waits;
  if (lock.is_owned()) {
    auto const mapped = static_cast<std::size_t>(counts.bytes_mapped());
    return waits | heap_index::of_size(mapped) | (mapped ? heap_index::whole_handle : 0);
  }
  bool const whole = !blocks.regions().empty() && blocks.most_free() >= blocks.regions().front()->page_bytes;
  std::size_t const largest = std::max(blocks.most_for_blocks(), pending.largest());
  return waits | heap_index::of_size(largest) | (whole ? heap_index::whole_handle : 0);
}

}  // namespace weir::memory
